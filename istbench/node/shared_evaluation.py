"""Evaluating an assembled model by all nodes, each on its share of the test samples.

Where nodes are machines of their own that takes less computing of each, but every one needs the model first.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from istbench.fabric import Fabric
from istbench.methods.base import with_storage
from istbench.node.evaluate import evaluate
from istbench.workloads.base import Batch, Workload


class Sharing:
    """Whether evaluations are shared: each way is tried once, and then goes the one that was last the quicker."""

    def __init__(self, possible: bool) -> None:
        self._ways = (False, True) if possible else (False,)
        self._seconds: dict[bool, float] = {}

    def chosen(self) -> bool:
        """Whether the next one is to be."""
        return min(self._ways, key=lambda way: self._seconds.get(way, 0.0))

    @contextmanager
    def timed(self, shared: bool) -> Iterator[None]:
        """Around an evaluation that is `shared`, or not."""
        started = time.perf_counter()
        yield
        self._seconds[shared] = time.perf_counter() - started


def can_be_shared(workload: Workload, fabric: Fabric) -> bool:
    """Whether nodes are machines of their own, and metrics of shares of the samples can be put together."""
    return fabric.several_hosts and workload.metrics_are_means


def shared_metrics(model: nn.Module, workload: Workload, fabric: Fabric) -> dict[str, float]:
    """On rank 0 the metrics of its `model`, while the other ranks are in `evaluate_share`."""
    hand_out(model, fabric)
    words = fabric.words.tell_zero(_sums_of_share(model, workload, fabric))
    samples, sums = zip(*map(json.loads, words), strict=True)
    return {name: sum(part.get(name, 0.0) for part in sums) / sum(samples) for name in sums[0]}


def evaluate_share(workload: Workload, fabric: Fabric) -> None:
    """On another rank: take the model from rank 0, and tell it the metrics of this rank's share."""
    with torch.device("meta"):
        blank = workload.build_model()
    model = with_storage(blank, fabric.device)
    hand_out(model, fabric)
    fabric.words.tell_zero(_sums_of_share(model, workload, fabric))


def hand_out(model: nn.Module, fabric: Fabric) -> None:
    """Give `model` the values of rank 0's, counted as `assemble`."""
    for tensor in _tensors(model):
        values = tensor.detach().contiguous()  # as rank 0's may lie otherwise than others'
        with fabric.accounting("assemble"):
            fabric.broadcast_async(values.view(-1).view(torch.uint8), 0, "handing out the model to evaluate").wait()
        if fabric.rank and values.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(values)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    return (tensor for tensor in chain(model.parameters(), model.buffers()) if tensor.numel())


def _sums_of_share(model: nn.Module, workload: Workload, fabric: Fabric) -> str:
    """Samples of this rank's share, and the sums of the metrics over them."""
    samples, sums = 0, dict[str, float]()
    for batch in share_of(workload.test_batches(), fabric.rank, fabric.world_size):
        count = len(batch[1])
        samples += count
        for name, mean in evaluate(model, workload, fabric.device, iter([batch])).items():
            sums[name] = sums.get(name, 0.0) + count * mean
    return json.dumps([samples, sums])


def share_of(batches: Iterator[Batch], part: int, parts: int) -> Iterator[Batch]:
    """Piece `part` of `parts` about equal ones of every batch; a batch of few samples may have none."""
    for inputs, targets in batches:
        pieces = list(zip(inputs.chunk(parts), targets.chunk(parts), strict=True))
        yield from pieces[part : part + 1]
