"""The full model on rank 0, off the clock: assembled, or read in blocks that the other nodes serve."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from istbench.fabric import Fabric
from istbench.methods.base import Method
from istbench.node.digest import blocks_of
from istbench.node.evaluate import calibrated, evaluate, evaluate_blocks, statistics_layers
from istbench.node.shared_evaluation import Sharing, evaluate_share, shared_metrics
from istbench.workloads.base import Block, Workload

_Blocks = Callable[[str, int, int, int], Tensor | None]


@dataclass(kw_only=True)
class FullModel:
    """What rank 0 evaluates, digests and saves.

    Attributes:
        tensors: as in its state dictionary; their values may be for `block` to read.
        metrics: evaluates it. assembled_s: seconds that bringing it together took so far.
    """

    tensors: Mapping[str, Tensor]
    block: Block
    metrics: Callable[[], dict[str, float]]
    assembled_s: float = field(default=0.0)


@contextmanager
def full_model(
    method: Method, workload: Workload, fabric: Fabric, seed: int, sharing: Sharing | None = None
) -> Iterator[FullModel | None]:
    """On rank 0 the full model, on the others None, once rank 0 is done with it.

    It comes in blocks where the method can give them and the workload evaluates them, else assembled. Evaluating an
    assembled one may be shared, as `sharing` says.
    """
    started = time.perf_counter()
    blank = _streamed(workload)
    with fabric.accounting("assemble"):
        blocks = None if blank is None else method.blocks()
        model = method.assemble() if blocks is None else None
    if fabric.rank:
        _serve(blocks or partial(evaluate_share, workload, fabric), fabric)
        yield None
        return
    seconds = time.perf_counter() - started
    if blank is not None and blocks is not None:
        full = _in_blocks(blank, blocks, workload, fabric)
        full.assembled_s += seconds
        yield full
    else:
        assert model is not None
        with calibrated(model, workload, seed, fabric.device):
            yield _assembled(model, workload, fabric, seconds, sharing or Sharing(possible=False))
    fabric.words.follow_zero()


def _streamed(workload: Workload) -> nn.Module | None:
    """The model without values, where the workload evaluates its blocks; None where not."""
    if not workload.evaluates_blocks:
        return None
    with torch.device("meta"):
        model = workload.build_model()
    return None if statistics_layers(model) else model


def _assembled(model: nn.Module, workload: Workload, fabric: Fabric, seconds: float, sharing: Sharing) -> FullModel:
    tensors: dict[str, Tensor] = model.state_dict()

    def metrics() -> dict[str, float]:
        shared = sharing.chosen()
        with sharing.timed(shared):
            if not shared:
                return evaluate(model, workload, fabric.device)
            fabric.words.follow_zero(json.dumps([]))
            return shared_metrics(model, workload, fabric)

    return FullModel(tensors=tensors, block=blocks_of(tensors), metrics=metrics, assembled_s=seconds)


def _in_blocks(blank: nn.Module, blocks: _Blocks, workload: Workload, fabric: Fabric) -> FullModel:
    """The model whose blocks rank 0 reads, each with a word to the others, which serve them."""
    named = _first_names(blank)

    def block(name: str, dim: int, first: int, last: int) -> Tensor:
        started = time.perf_counter()
        asked = named[name], dim, first, last
        fabric.words.follow_zero(json.dumps(asked))
        with fabric.accounting("assemble"):
            values = blocks(*asked)
        assert values is not None
        full.assembled_s += time.perf_counter() - started
        return values

    full = FullModel(
        tensors=blank.state_dict(),
        block=block,
        metrics=lambda: evaluate_blocks(block, workload, fabric.device),
    )
    return full


def _serve(answer: Callable[..., object], fabric: Fabric) -> None:
    """Give rank 0 what it asks for, until it asks for no more."""
    with fabric.accounting("assemble"):
        while asked := fabric.words.follow_zero():
            answer(*json.loads(asked))


def _first_names(model: nn.Module) -> dict[str, str]:
    """By name of a parameter or buffer: the name it has first, where modules share it."""
    first: dict[int, str] = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors}
