"""The full model on rank 0, off the clock: assembled, or in blocks that other ranks send on request."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from istbench.base.activity import current
from istbench.base.error_lines import during
from istbench.base.errors import UserError
from istbench.base.options.run import RunConfig
from istbench.base.seeds import derived_seed
from istbench.fabric import Fabric
from istbench.methods.base import AssembledInBlocks, EvaluatedInParts, Figures, Method
from istbench.node.checkpoint import random_state_kept
from istbench.node.digest import blocks_of, sha256_of
from istbench.node.evaluate import calibrated, evaluate, metrics_by, statistics_layers
from istbench.node.shared_evaluation import Sharing, can_be_shared, evaluate_share, shared_metrics
from istbench.node.weights_file import save_weights
from istbench.workloads.base import ReadBlock, Workload

_Blocks = Callable[[str, int, int, int], Tensor | None]


@dataclass(kw_only=True)
class FullModel:
    """The model that rank 0 evaluates, digests and saves.

    Attributes:
        tensors: the state dictionary, maybe on the meta device. block: reads the values of tensors.
        metrics: evaluates the model. assembled_s: seconds that assembling took so far.
    """

    tensors: Mapping[str, Tensor]
    block: ReadBlock
    metrics: Callable[[], dict[str, float]]
    assembled_s: float = field(default=0.0)


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Metrics of the full model, and the seconds that assembling and evaluating it took. Only rank 0 has them."""

    metrics: Mapping[str, float]
    assemble_s: float
    evaluate_s: float


class Evaluator:
    """Evaluates and saves the full model of a run, off the clock. Every rank must call its methods alike.

    Where rank 0 evaluates alone, it computes on all cores, `all_threads`. In a lab, it computes on one core.
    """

    def __init__(
        self, config: RunConfig, method: Method, workload: Workload, fabric: Fabric, all_threads: int
    ) -> None:
        self._config, self._method, self._workload, self._fabric = config, method, workload, fabric
        self._all_threads = all_threads
        self._sharing = Sharing(possible=can_be_shared(workload, fabric))

    def evaluate(self, step: int) -> Evaluated:
        """Assemble and evaluate the model after local step `step`. Metrics include the method's own figures."""
        current.begin("evaluating after step", step)
        figures = self._method.figures() if isinstance(self._method, Figures) else {}
        started = time.perf_counter()
        with self._full_model() as model:
            metrics = {} if model is None else {**figures, **model.metrics()}
        assemble_s = 0.0 if model is None else model.assembled_s
        evaluate_s = time.perf_counter() - started - assemble_s
        return Evaluated(metrics=metrics, assemble_s=assemble_s, evaluate_s=evaluate_s)

    def save(self) -> str:
        """Save the weights where the run's `save` says, if it does; returns their SHA-256, empty on other ranks."""
        with self._full_model() as model:
            if model is None:
                return ""
            digest = sha256_of(model.tensors, model.block)
            if self._config.save is not None:
                save_weights(Path(self._config.save), model.tensors, model.block, digest)
            return digest

    @contextmanager
    def _full_model(self) -> Iterator[FullModel | None]:
        training_threads = torch.get_num_threads()
        alone = self._fabric.rank == 0 and _parts(self._method, self._workload, self._fabric) is None
        torch.set_num_threads(self._all_threads if alone else training_threads)
        seed = derived_seed(self._config.seed, "evaluation", self._fabric.rank)
        try:
            with (
                random_state_kept(seed),  # so training does not depend on its evaluations
                full_model(self._method, self._workload, self._fabric, self._config.seed, self._sharing) as model,
            ):
                yield model
        finally:
            torch.set_num_threads(training_threads)


@contextmanager
def full_model(
    method: Method, workload: Workload, fabric: Fabric, seed: int, sharing: Sharing | None = None
) -> Iterator[FullModel | None]:
    """The full model on rank 0. Other ranks get None after rank 0 leaves its block.

    The model comes in blocks if the method can give them and the workload evaluates them; otherwise assembled.
    All ranks evaluate it together if each keeps a part of it. `sharing` decides so for an assembled model.
    """
    started = time.perf_counter()
    blank = _streamed(workload)
    assembling = during("copying the model", workload.place("model"), of_libraries=True)
    with fabric.accounting("assemble"), assembling:
        blocks = method.blocks() if blank is not None and isinstance(method, AssembledInBlocks) else None
        model = method.assemble() if blocks is None else None
    parts = None if blocks is None else _parts(method, workload, fabric)
    if fabric.rank:
        _serve(blocks, parts or partial(evaluate_share, workload, fabric), fabric)
        yield None
        return
    seconds = time.perf_counter() - started
    if blank is not None and blocks is not None:
        full = _in_blocks(blank, blocks, parts, workload, fabric)
        full.assembled_s += seconds
        yield full
    else:
        assert model is not None
        with calibrated(model, workload, seed, fabric.device):
            yield _assembled(model, workload, fabric, seconds, sharing or Sharing(possible=False))
    fabric.texts.broadcast()


def _parts(method: Method, workload: Workload, fabric: Fabric) -> Callable[[], dict[str, float]] | None:
    """Evaluates this rank's part of the model, together with all ranks; None if the model has no such parts."""
    if workload.evaluates_blocks and workload.evaluates_parts and isinstance(method, EvaluatedInParts):
        return partial(metrics_by, partial(method.evaluate_part, workload), workload, fabric.device)
    return None


def _streamed(workload: Workload) -> nn.Module | None:
    """The model without values, if the workload evaluates it in blocks; otherwise None."""
    if not workload.evaluates_blocks:
        return None
    with torch.device("meta"):
        model = workload.build_model()
    return None if statistics_layers(model) else model


def _assembled(model: nn.Module, workload: Workload, fabric: Fabric, seconds: float, sharing: Sharing) -> FullModel:
    tensors: dict[str, Tensor] = model.state_dict()

    def metrics() -> dict[str, float]:
        _check_frozen(model, workload)
        shared = sharing.chosen()
        with sharing.timed(shared):
            if not shared:
                return evaluate(model, workload, fabric.device)
            fabric.texts.broadcast(json.dumps([]))
            return shared_metrics(model, workload, fabric)

    return FullModel(tensors=tensors, block=blocks_of(tensors), metrics=metrics, assembled_s=seconds)


def _check_frozen(model: nn.Module, workload: Workload) -> None:
    """Refuse a user's model whose code unfroze a parameter: methods chose before which ones to train and to send.

    Raises:
        UserError: naming the parameter.
    """
    frozen = _frozen_at_start(workload) if workload.start_sums() else ()
    for name, own in model.named_parameters():
        if own.requires_grad and name in frozen:
            raise UserError(
                f"{workload.in_errors}: {name} has requires_grad=False in model() and no longer, so nodes do not "
                "train it together; let model() return it unfrozen, and detach its output until it should train"
            )


@lru_cache(maxsize=1)  # every evaluation asks for it
def _frozen_at_start(workload: Workload) -> frozenset[str]:
    """Names of the parameters that nobody trains in a new model of `workload`."""
    with torch.device("meta"):
        return frozenset(name for name, own in workload.build_model().named_parameters() if not own.requires_grad)


def _in_blocks(
    blank: nn.Module,
    blocks: _Blocks,
    parts: Callable[[], dict[str, float]] | None,
    workload: Workload,
    fabric: Fabric,
) -> FullModel:
    """A model whose blocks rank 0 reads: it requests each block by its name, and all ranks send their part.

    `parts` evaluates it without that, if given.
    """
    named = _first_names(blank)

    def block(name: str, dim: int, first: int, last: int) -> Tensor:
        started = time.perf_counter()
        request = named[name], dim, first, last
        fabric.texts.broadcast(json.dumps(request))
        with fabric.accounting("assemble"):
            values = blocks(*request)
        assert values is not None
        full.assembled_s += time.perf_counter() - started
        return values

    def metrics() -> dict[str, float]:
        if parts is None:
            return metrics_by(partial(workload.evaluate_blocks, block), workload, fabric.device)
        fabric.texts.broadcast(json.dumps([]))
        with fabric.accounting("assemble"):
            return parts()

    full = FullModel(tensors=blank.state_dict(), block=block, metrics=metrics)
    return full


def _serve(blocks: _Blocks | None, share: Callable[[], object], fabric: Fabric) -> None:
    """Answer the requests of rank 0 until it ends them: for a block, or for this rank's share of an evaluation."""
    with fabric.accounting("assemble"):
        while request := fabric.texts.broadcast():
            wanted = json.loads(request)
            if not wanted:
                share()
            elif blocks is not None:
                blocks(*wanted)


def _first_names(model: nn.Module) -> dict[str, str]:
    """The first name of each parameter or buffer, by name: modules may share a tensor under several names."""
    first: dict[int, str] = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors}
