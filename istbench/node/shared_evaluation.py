"""Evaluating an assembled model on all ranks, each with its share of the test samples.

On several hosts each rank then computes less, but every rank needs the model first.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from istbench.fabric import Fabric
from istbench.node.evaluate import evaluate
from istbench.workloads.base import Batch, Workload
from istbench.workloads.initialise import with_storage


class Sharing:
    """Decides whether all ranks evaluate. It tries both ways once, then takes the one that was faster last."""

    def __init__(self, possible: bool) -> None:
        self._ways = (False, True) if possible else (False,)
        self._seconds: dict[bool, float] = {}

    def chosen(self) -> bool:
        """Whether all ranks share the next evaluation."""
        return min(self._ways, key=lambda way: self._seconds.get(way, 0.0))

    @contextmanager
    def timed(self, shared: bool) -> Iterator[None]:
        """Time the evaluation inside, which is `shared` or not."""
        started = time.perf_counter()
        yield
        self._seconds[shared] = time.perf_counter() - started


def can_be_shared(workload: Workload, fabric: Fabric) -> bool:
    """Whether ranks run on several hosts, and metrics of shares of the samples can be averaged."""
    return fabric.several_hosts and workload.metrics_are_means


def shared_metrics(model: nn.Module, workload: Workload, fabric: Fabric) -> dict[str, float]:
    """The metrics of rank 0's `model`, while the other ranks run `evaluate_share`."""
    hand_out(model, fabric)
    texts = fabric.texts.gather(_sums_of_share(model, workload, fabric))
    samples, sums = zip(*map(json.loads, texts), strict=True)
    return {name: sum(part.get(name, 0.0) for part in sums) / sum(samples) for name in sums[0]}


def evaluate_share(workload: Workload, fabric: Fabric) -> None:
    """On another rank: receive the model from rank 0, and send it the metrics of this rank's share."""
    with torch.device("meta"):
        blank = workload.build_model()
    model = with_storage(blank, fabric.device)
    hand_out(model, fabric)
    fabric.texts.gather(_sums_of_share(model, workload, fabric))


def hand_out(model: nn.Module, fabric: Fabric) -> None:
    """Broadcast the values of rank 0's `model`; the traffic counts as `assemble`."""
    for tensor in _tensors(model):
        values = tensor.detach().contiguous()  # memory formats of ranks may differ
        with fabric.accounting("assemble"):
            fabric.broadcast_async(values.view(-1).view(torch.uint8), 0, "handing out the model to evaluate").wait()
        if fabric.rank and values.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(values)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    return (tensor for tensor in chain(model.parameters(), model.buffers()) if tensor.numel())


def _sums_of_share(model: nn.Module, workload: Workload, fabric: Fabric) -> str:
    """The number of samples in this rank's share, and the sums of their metrics."""
    samples, sums = 0, dict[str, float]()
    for batch in share_of(workload.test_batches(), fabric.rank, fabric.world_size):
        count = len(batch[1])
        samples += count
        for name, mean in evaluate(model, workload, fabric.device, iter([batch])).items():
            sums[name] = sums.get(name, 0.0) + count * mean
    return json.dumps([samples, sums])


def share_of(batches: Iterator[Batch], part: int, parts: int) -> Iterator[Batch]:
    """Piece `part` of every batch, cut in `parts` nearly equal pieces; a small batch may have fewer."""
    for inputs, targets in batches:
        pieces = list(zip(inputs.chunk(parts), targets.chunk(parts), strict=True))
        yield from pieces[part : part + 1]
