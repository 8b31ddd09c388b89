"""The full model on rank 0, off the clock: assembled, or read in blocks that the other nodes serve."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from istbench.fabric import Fabric
from istbench.methods.base import Method
from istbench.node.digest import blocks_of
from istbench.node.evaluate import calibrated, evaluate, evaluate_blocks, statistics_layers
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
def full_model(method: Method, workload: Workload, fabric: Fabric, seed: int) -> Iterator[FullModel | None]:
    """On rank 0 the full model, on the others None, once that is no longer read.

    It comes in blocks where the method can give them and the workload evaluates them, else assembled.
    """
    started = time.perf_counter()
    blank = _streamed(workload)
    with fabric.accounting("assemble"):
        blocks = None if blank is None else method.blocks()
        model = method.assemble() if blocks is None else None
    if blank is not None and blocks is not None:
        if fabric.rank:
            _serve(blocks, fabric)
            yield None
            return
        full = _in_blocks(blank, blocks, workload, fabric)
        full.assembled_s += time.perf_counter() - started
        yield full
        fabric.follow_zero()
    elif model is None:
        yield None
    else:
        seconds = time.perf_counter() - started
        with calibrated(model, workload, seed, fabric.device):
            yield _assembled(model, workload, fabric, seconds)


def _streamed(workload: Workload) -> nn.Module | None:
    """The model without values, where the workload evaluates its blocks; None where not."""
    if not workload.evaluates_blocks:
        return None
    with torch.device("meta"):
        model = workload.build_model()
    return None if statistics_layers(model) else model


def _assembled(model: nn.Module, workload: Workload, fabric: Fabric, seconds: float) -> FullModel:
    tensors: dict[str, Tensor] = model.state_dict()
    return FullModel(
        tensors=tensors,
        block=blocks_of(tensors),
        metrics=lambda: evaluate(model, workload, fabric.device),
        assembled_s=seconds,
    )


def _in_blocks(blank: nn.Module, blocks: _Blocks, workload: Workload, fabric: Fabric) -> FullModel:
    """The model whose blocks rank 0 reads, each with a word to the others, which serve them."""
    named = _first_names(blank)

    def block(name: str, dim: int, first: int, last: int) -> Tensor:
        started = time.perf_counter()
        asked = named[name], dim, first, last
        fabric.follow_zero(json.dumps(asked))
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


def _serve(blocks: _Blocks, fabric: Fabric) -> None:
    """Give rank 0 what it asks for, until it asks for no more."""
    with fabric.accounting("assemble"):
        while asked := fabric.follow_zero():
            blocks(*json.loads(asked))


def _first_names(model: nn.Module) -> dict[str, str]:
    """By name of a parameter or buffer: the name it has first, where modules share it."""
    first: dict[int, str] = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors}
