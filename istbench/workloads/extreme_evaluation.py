"""Evaluate an extreme classifier in blocks of labels: a network in memory, in parts of nodes, or read in blocks.

All compute the same outputs, products of the same two rows. For a network read in blocks, the first layer comes in
blocks of units, the second in blocks of labels. Memory holds the points' hidden layers and rankings.

The metrics are those of the Extreme Classification Repository (propensities: Jain et al., KDD 2016). Every mean is
over all points of the test split. A point without labels counts 0.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from istbench.workloads.base import Batch, ReadBlock
from istbench.workloads.extreme_data.points import SparseBatch
from istbench.workloads.models.extreme import ExtremeNetwork, sparse_linear
from istbench.workloads.wide_softmax import Exchange

AT = (1, 3, 5)
_GROUP = 64


class TopLabels:
    """The `count` largest outputs of every point, their labels, and the loss, from blocks of outputs in any order.

    Attributes:
        truth: the true labels.
        labels: the labels of every point by falling output: int64 [b, count], or fewer if there are fewer.
        normalisers: the logarithm of the sum of exponentials of all outputs, [b].
    """

    labels: Tensor
    normalisers: Tensor
    _true: Tensor

    def __init__(self, truth: SparseBatch, count: int = AT[-1]) -> None:
        self.truth, self._rows, self._count = truth, truth.row_of_entry(), count
        self._outputs: Tensor | None = None

    def add(self, first: int, outputs: Tensor) -> None:
        """Add the outputs [b, n] of labels `first` to `first + n - 1`."""
        values, labels = _largest(outputs, min(self._count, outputs.shape[1]))
        labels, logs = labels + first, outputs.logsumexp(1)
        if self._outputs is None:
            self._outputs, self.labels, self.normalisers = values, labels, logs
            self._true = outputs.new_zeros(len(self._rows))
        else:
            values, labels = torch.cat([self._outputs, values], 1), torch.cat([self.labels, labels], 1)
            self._outputs, kept = values.topk(min(self._count, values.shape[1]), dim=1)
            self.labels = labels.gather(1, kept)
            self.normalisers = torch.logaddexp(self.normalisers, logs)
        places = self.truth.indices - first
        own = (places >= 0) & (places < outputs.shape[1])
        self._true[own] = outputs[self._rows[own], places[own]]

    def join(self, nodes: Exchange) -> None:
        """Become the ranking over all nodes' labels, of which each node has added its own."""
        assert self._outputs is not None
        missing = (0, self._count - self._outputs.shape[1])
        outputs, labels = F.pad(self._outputs, missing, value=-torch.inf), F.pad(self.labels, missing)
        sizes = outputs.numel(), len(self.truth), len(self._true)
        told = nodes.each(torch.cat([outputs.flatten(), self.normalisers, self._true]), "gathering the outputs")
        values, logs, true = told.split(sizes, dim=1)
        self.normalisers, self._true = logs.logsumexp(0), true.sum(0)
        each = nodes.each(labels, "gathering the labels")
        by_point = values.view(each.shape).transpose(0, 1).flatten(1)
        self._outputs, kept = by_point.topk(min(self._count, self.truth.columns), dim=1)
        self.labels = each.transpose(0, 1).flatten(1).gather(1, kept)

    def loss(self) -> float:
        """The sum over points of the mean loss over a point's labels."""
        shares = self.truth.offsets.diff().to(self._true.dtype).reciprocal()[self._rows]
        return float(((self.normalisers[self._rows] - self._true) * shares).sum())


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
    """Means of the metrics and of the loss over points, added batch by batch.

    weights: the inverse propensity of every label.
    """

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        self._discounts = 1 / torch.arange(2, AT[-1] + 2, dtype=torch.float64).log2()
        self._count, self._loss = 0, 0.0
        self._sums = {f"{name}@{k}": 0.0 for name in ("precision", "ndcg") for k in AT}
        self._scored, self._best = (dict.fromkeys(AT, 0.0) for _ in range(2))

    def add(self, ranked: Tensor, truth: SparseBatch, loss: float) -> None:
        """Add points by their top labels `ranked` (int64 [b, 5], or fewer), true labels and the sum of losses."""
        ranked = ranked.cpu()
        hits = _hits(ranked, truth)
        counts = truth.offsets.diff().cpu()
        scored = hits * self._weights[ranked]
        best = self._best_weights(truth)
        self._count += len(ranked)
        self._loss += loss
        for k in AT:
            self._sums[f"precision@{k}"] += float(hits[:, :k].sum()) / k
            gained = (hits * self._discounts[: hits.shape[1]])[:, :k].sum(1)
            ideal = self._discounts.cumsum(0)[counts.clamp(1, k) - 1]
            self._sums[f"ndcg@{k}"] += float((gained / ideal).sum())
            self._scored[k] += float(scored[:, :k].sum())
            self._best[k] += float(best[:, :k].sum())

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
        """`precision@k`, `ndcg@k` and `psp@k` for k of 1, 3 and 5, and `loss`; NaN if there are no points."""
        if not self._count:
            return dict.fromkeys((*self._sums, *(f"psp@{k}" for k in AT), "loss"), math.nan)
        means = {name: total / self._count for name, total in self._sums.items()}
        psp = {f"psp@{k}": self._scored[k] / self._best[k] if self._best[k] else 0.0 for k in AT}
        return {**means, **psp, "loss": self._loss / self._count}


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
    metrics = RankingMetrics(weights)
    for points, truth in batches:
        hidden, ranked = network.hidden(points), TopLabels(truth)
        for first, outputs in network.output.outputs(hidden if nodes is None else nodes.gather(hidden)):
            ranked.add(first, outputs)
        if nodes is not None:
            ranked.join(nodes)
        metrics.add(ranked.labels, truth, ranked.loss())
    return metrics.results()


def metrics_by_blocks(
    network: ExtremeNetwork,
    block: ReadBlock,
    batches: Iterator[Batch],
    weights: Tensor,
    *,
    most_hidden: int = _MOST_HIDDEN,
) -> dict[str, float]:
    """The same metrics for a network like `network` (may be on the meta device), whose weights `block` reads.

    most_hidden: maximum number of hidden values in memory.
    """
    metrics = RankingMetrics(weights)
    labels, size = network.output.out_features, network.output.block
    for group in _groups(batches, max(1, most_hidden // network.output.in_features)):
        hidden = _hidden(network, block, [points for points, _ in group])
        ranked = [TopLabels(truth) for _, truth in group]
        for first in range(0, labels, size):
            last = min(first + size, labels)
            weight, bias = (block(f"output.{part}", 0, first, last) for part in ("weight", "bias"))
            for activations, own in zip(hidden, ranked, strict=True):
                own.add(first, F.linear(activations, weight, bias))
        for own in ranked:
            metrics.add(own.labels, own.truth, own.loss())
    return metrics.results()


def _hidden(network: ExtremeNetwork, block: ReadBlock, batches: list[SparseBatch]) -> list[Tensor]:
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
