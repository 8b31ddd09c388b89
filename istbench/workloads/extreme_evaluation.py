"""Evaluate an extreme classifier in blocks of labels: a network in memory, or one read block by block.

Both compute the same outputs, products of the same two rows. For a network read in blocks, the first layer comes in
blocks of units, the second in blocks of labels. Memory holds the points' hidden layers and rankings.
"""

import math
from collections.abc import Iterable, Iterator

from torch import Tensor
from torch.nn import functional as F

from istbench.workloads.base import Batch, Block
from istbench.workloads.extreme_data.points import SparseBatch
from istbench.workloads.models.extreme import ExtremeNetwork, sparse_linear
from istbench.workloads.ranking import RankingMetrics, TopLabels

_MOST_HIDDEN = 1 << 27  # values in memory: 512 MiB; more points read the network more often


def network_metrics(network: ExtremeNetwork, batches: Iterator[Batch], weights: Tensor) -> dict[str, float]:
    """`precision@k`, `ndcg@k`, `psp@k` and the mean `loss` of `network` over `batches`.

    weights: the inverse propensity of every label.
    """
    totals = _Totals(weights)
    for points, labels in batches:
        hidden, ranked = network.hidden(points), _Ranked(labels)
        for first, outputs in network.output.outputs(hidden):
            ranked.add(first, outputs)
        totals.add(ranked)
    return totals.metrics()


def metrics_by_blocks(
    network: ExtremeNetwork,
    block: Block,
    batches: Iterator[Batch],
    weights: Tensor,
    *,
    most_hidden: int = _MOST_HIDDEN,
) -> dict[str, float]:
    """The same metrics for a network like `network` (may be on the meta device), whose weights `block` reads.

    most_hidden: maximum number of hidden values in memory.
    """
    totals = _Totals(weights)
    labels, size = network.output.out_features, network.output.block
    for group in _groups(batches, max(1, most_hidden // network.output.in_features)):
        hidden = _hidden(network, block, [points for points, _ in group])
        ranked = [_Ranked(truth) for _, truth in group]
        for first in range(0, labels, size):
            last = min(first + size, labels)
            weight, bias = (block(f"output.{part}", 0, first, last) for part in ("weight", "bias"))
            for activations, own in zip(hidden, ranked, strict=True):
                own.add(first, F.linear(activations, weight, bias))
        for own in ranked:
            totals.add(own)
    return totals.metrics()


def _hidden(network: ExtremeNetwork, block: Block, batches: list[SparseBatch]) -> list[Tensor]:
    """The hidden layer of each batch. A block of the first layer is no larger than one of the second."""
    features, units = network.input.weight.shape
    size = max(1, network.output.block * units // features)
    hidden: list[Tensor] = []
    for first in range(0, units, size):
        last = min(first + size, units)
        weight, bias = block("input.weight", 1, first, last), block("input.bias", 0, first, last)
        hidden = hidden or [weight.new_empty(len(points), units) for points in batches]
        for points, activations in zip(batches, hidden, strict=True):
            activations[:, first:last] = network.relu(sparse_linear(points, weight, bias))
    return hidden


def _groups(batches: Iterable[Batch], most: int) -> Iterator[list[Batch]]:
    """Groups of consecutive batches with up to `most` points, or one larger batch."""
    group: list[Batch] = []
    points = 0
    for batch in batches:
        if group and points + len(batch[0]) > most:
            yield group
            group, points = [], 0
        group.append(batch)
        points += len(batch[0])
    if group:
        yield group


class _Ranked:
    """The top labels of some points and their loss, from blocks of outputs."""

    def __init__(self, labels: SparseBatch) -> None:
        self.labels, self.top = labels, TopLabels()
        self._rows = labels.row_of_entry()
        self._true: Tensor | None = None

    def add(self, first: int, outputs: Tensor) -> None:
        """Add a block of outputs, for the labels from `first`."""
        self.top.add(first, outputs)
        if self._true is None:
            self._true = outputs.new_zeros(len(self._rows))
        places = self.labels.indices - first
        own = (places >= 0) & (places < outputs.shape[1])
        self._true[own] = outputs[self._rows[own], places[own]]

    def loss(self) -> float:
        """The sum over points of the mean loss over a point's labels."""
        assert self._true is not None
        shares = self.labels.offsets.diff().to(self._true.dtype).reciprocal()[self._rows]
        return float(((self.top.normalisers[self._rows] - self._true) * shares).sum())


class _Totals:
    def __init__(self, weights: Tensor) -> None:
        self._ranking = RankingMetrics(weights)
        self._count, self._loss = 0, 0.0

    def add(self, ranked: _Ranked) -> None:
        self._ranking.add(ranked.top.labels, ranked.labels)
        self._loss += ranked.loss()
        self._count += len(ranked.labels)

    def metrics(self) -> dict[str, float]:
        return {**self._ranking.results(), "loss": self._loss / self._count if self._count else math.nan}
