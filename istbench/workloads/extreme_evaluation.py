"""Evaluate an extreme classifier in blocks of labels: a network in memory, in parts of nodes, or read in blocks.

All compute the same outputs, products of the same two rows. For a network read in blocks, the first layer comes in
blocks of units, the second in blocks of labels. Memory holds the points' hidden layers and rankings.

The metrics are those of the Extreme Classification Repository (propensities: Jain et al., KDD 2016). Every mean is
over all points of the test split. A point without labels counts 0.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from istbench.workloads.base import Batch, Block
from istbench.workloads.extreme_data.points import SparseBatch
from istbench.workloads.models.extreme import ExtremeNetwork, sparse_linear
from istbench.workloads.wide_softmax import Exchange

AT = (1, 3, 5)
_GROUP = 64


class TopLabels:
    """The `count` largest outputs of every point and their labels, from blocks of outputs in any order."""

    def __init__(self, count: int = AT[-1]) -> None:
        self._count = count
        self._outputs: Tensor | None = None
        self._labels: Tensor | None = None
        self._logs: Tensor | None = None

    def add(self, first: int, outputs: Tensor) -> None:
        """Add the outputs [b, n] of labels `first` to `first + n - 1`."""
        values, labels = _largest(outputs, min(self._count, outputs.shape[1]))
        labels = labels + first
        logs = outputs.logsumexp(1)
        if self._outputs is None or self._labels is None or self._logs is None:
            self._outputs, self._labels, self._logs = values, labels, logs
            return
        self._logs = torch.logaddexp(self._logs, logs)
        values, labels = torch.cat([self._outputs, values], 1), torch.cat([self._labels, labels], 1)
        self._outputs, kept = values.topk(min(self._count, values.shape[1]), dim=1)
        self._labels = labels.gather(1, kept)

    @property
    def labels(self) -> Tensor:
        """The labels of every point by falling output: int64 [b, count], or fewer if there are fewer."""
        assert self._labels is not None
        return self._labels

    @property
    def normalisers(self) -> Tensor:
        """The logarithm of the sum of exponentials of all outputs, [b]."""
        assert self._logs is not None
        return self._logs


def _largest(outputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`outputs.topk(count, dim=1)`, but faster: only groups with the largest maxima can hold them."""
    rows, columns = outputs.shape
    groups = columns // _GROUP
    if groups <= 2 * count:
        return tuple(outputs.topk(count, dim=1))  # type: ignore[return-value]
    grouped = outputs[:, : groups * _GROUP].view(rows, groups, _GROUP)
    chosen = grouped.amax(2).topk(count, dim=1).indices
    places = (chosen[:, :, None] * _GROUP + torch.arange(_GROUP, device=outputs.device)).flatten(1)
    rest = torch.arange(groups * _GROUP, columns, device=outputs.device).expand(rows, -1)
    places = torch.cat([places, rest], 1)
    values, kept = outputs.gather(1, places).topk(count, dim=1)
    return values, places.gather(1, kept)


def inverse_propensities(counts: Tensor, points: int, a: float, b: float) -> Tensor:
    """1 / p of every label, float64, where p is the probability that the data notes a label that holds.

    Args:
        counts: training points with each label. points: training points. a, b: constants of the kind of data set.
    """
    c = (math.log(points) - 1) * (b + 1) ** a
    return 1 + c * (counts.double() + b) ** -a


class RankingMetrics:
    """Means of the metrics over points, added batch by batch.

    weights: the inverse propensity of every label.
    """

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        self._discounts = 1 / torch.arange(2, AT[-1] + 2, dtype=torch.float64).log2()
        self._count = 0
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, ranked: Tensor, truth: SparseBatch) -> None:
        """Add points with the top labels `ranked` (int64 [b, 5], or fewer) and the true labels `truth`."""
        ranked = ranked.cpu()
        hits = _hits(ranked, truth)
        counts = truth.offsets.diff().cpu()
        scored = hits * self._weights[ranked]
        best = self._best_weights(truth)
        self._count += len(ranked)
        for k in AT:
            self._sums[f"precision@{k}"] += float(hits[:, :k].sum()) / k
            gained = (hits * self._discounts[: hits.shape[1]])[:, :k].sum(1)
            ideal = self._discounts.cumsum(0)[counts.clamp(1, k) - 1]
            self._sums[f"ndcg@{k}"] += float((gained / ideal).sum())
            self._sums[f"scored@{k}"] += float(scored[:, :k].sum())
            self._sums[f"best@{k}"] += float(best[:, :k].sum())

    def _best_weights(self, truth: SparseBatch) -> Tensor:
        """The five largest weights of each point's labels in falling order, padded with 0: float64 [b, 5]."""
        best = torch.zeros(len(truth), AT[-1], dtype=torch.float64)
        weights, rows = self._weights[truth.indices.cpu()], truth.row_of_entry().cpu()
        order = weights.argsort(descending=True, stable=True)
        order = order[rows[order].argsort(stable=True)]
        place = torch.arange(len(rows)) - truth.offsets.cpu()[rows]
        kept = place < AT[-1]
        best[rows[kept], place[kept]] = weights[order][kept]
        return best

    def results(self) -> dict[str, float]:
        """`precision@k`, `ndcg@k` and `psp@k` for k of 1, 3 and 5; NaN if there are no points."""
        return {**self._means("precision"), **self._means("ndcg"), **{f"psp@{k}": self._psp(k) for k in AT}}

    def _means(self, name: str) -> dict[str, float]:
        none = self._count == 0
        return {f"{name}@{k}": math.nan if none else self._sums[f"{name}@{k}"] / self._count for k in AT}

    def _psp(self, k: int) -> float:
        if self._count == 0:
            return math.nan
        best = self._sums[f"best@{k}"]
        return self._sums[f"scored@{k}"] / best if best else 0.0


def _hits(ranked: Tensor, truth: SparseBatch) -> Tensor:
    """Whether each of `ranked` is a true label of its point: float64 [b, k]."""
    keys = truth.row_of_entry().cpu() * truth.columns + truth.indices.cpu()
    found = torch.arange(len(ranked))[:, None] * truth.columns + ranked
    return torch.isin(found, keys).double()


_MOST_HIDDEN = 1 << 27  # values in memory: 512 MiB; more points read the network more often


def network_metrics(
    network: ExtremeNetwork, batches: Iterator[Batch], weights: Tensor, nodes: Exchange | None = None
) -> dict[str, float]:
    """`precision@k`, `ndcg@k`, `psp@k` and the mean `loss` of `network` over `batches`.

    weights: the inverse propensity of every label. nodes: if `network` is a part, those that keep the others.
    """
    totals = _Totals(weights)
    for points, labels in batches:
        hidden, ranked = network.hidden(points), _Ranked(labels)
        for first, outputs in network.output.outputs(hidden if nodes is None else nodes.gather(hidden)):
            ranked.add(first, outputs)
        if nodes is not None:
            ranked.join(nodes)
        totals.add_ranked(ranked)
    return totals.results()


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
            totals.add_ranked(own)
    return totals.results()


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


class _Ranked(TopLabels):
    """The top labels of some points and their loss, with the true labels `truth`."""

    def __init__(self, truth: SparseBatch) -> None:
        super().__init__()
        self.truth, self._rows = truth, truth.row_of_entry()
        self._true: Tensor | None = None

    def add(self, first: int, outputs: Tensor) -> None:
        super().add(first, outputs)
        if self._true is None:
            self._true = outputs.new_zeros(len(self._rows))
        places = self.truth.indices - first
        own = (places >= 0) & (places < outputs.shape[1])
        self._true[own] = outputs[self._rows[own], places[own]]

    def join(self, nodes: Exchange) -> None:
        """Become the ranking over all nodes' labels, of which each node has added its own."""
        assert self._outputs is not None
        assert self._true is not None
        missing = (0, self._count - self._outputs.shape[1])
        outputs, labels = F.pad(self._outputs, missing, value=-torch.inf), F.pad(self.labels, missing)
        sizes = outputs.numel(), len(self.truth), len(self._true)
        told = nodes.each(torch.cat([outputs.flatten(), self.normalisers, self._true]), "gathering the outputs")
        values, logs, true = told.split(sizes, dim=1)
        self._logs, self._true = logs.logsumexp(0), true.sum(0)
        each = nodes.each(labels, "gathering the labels")
        by_point = values.view(each.shape).transpose(0, 1).flatten(1)
        self._outputs, kept = by_point.topk(min(self._count, self.truth.columns), dim=1)
        self._labels = each.transpose(0, 1).flatten(1).gather(1, kept)

    def loss(self) -> float:
        """The sum over points of the mean loss over a point's labels."""
        assert self._true is not None
        shares = self.truth.offsets.diff().to(self._true.dtype).reciprocal()[self._rows]
        return float(((self.normalisers[self._rows] - self._true) * shares).sum())


class _Totals(RankingMetrics):
    """The metrics with the mean loss."""

    _loss = 0.0

    def add_ranked(self, ranked: _Ranked) -> None:
        self.add(ranked.labels, ranked.truth)
        self._loss += ranked.loss()

    def results(self) -> dict[str, float]:
        return {**super().results(), "loss": self._loss / self._count if self._count else math.nan}
