"""A network from sparse inputs to very many labels. Its loss needs memory for one block of labels."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from istbench.workloads.extreme_data.points import SparseBatch
from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot
from istbench.workloads.wide_softmax import OverNodes, TrueOutputs, WideSoftmax

_PLANNING = "meta"  # the device of a plan, without autocast and values


class SparseLinear(nn.Module):
    """A linear layer over sparse inputs, without a dense copy; weight [inputs, outputs], bias [outputs].

    With `sparse_gradients`, the gradient of the weight is a sparse tensor with the rows of a batch.
    """

    sparse_gradients = False

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, rows: SparseBatch) -> Tensor:
        """Float32 [b, outputs] of `rows` [b, inputs]."""
        return sparse_linear(rows, self.weight, self.bias, sparse_gradients=self.sparse_gradients)


def sparse_linear(rows: SparseBatch, weight: Tensor, bias: Tensor, *, sparse_gradients: bool = False) -> Tensor:
    """Float32 [b, outputs] of `rows` [b, inputs], `weight` [inputs, outputs] and `bias` [outputs]."""
    values = torch.ones_like(rows.indices, dtype=weight.dtype) if rows.values is None else rows.values
    summed = F.embedding_bag(
        rows.indices,
        weight,
        rows.offsets,
        mode="sum",
        sparse=sparse_gradients,
        per_sample_weights=values.to(weight.dtype),
        include_last_offset=True,
    )
    return summed + bias


class LabelLayer(nn.Linear):
    """The output layer over all labels, computed in blocks of up to `block` labels.

    A node's part of the layer has `labels` labels, from `first`.
    """

    def __init__(self, hidden: int, labels: int, block: int, first: int = 0) -> None:
        super().__init__(hidden, labels)
        self.block, self.first = block, first

    def forward(
        self, hidden: Tensor, labels: SparseBatch | None = None, over_nodes: OverNodes | None = None
    ) -> Tensor:
        """The mean loss of `hidden` [b, hidden], a scalar, if `labels` are given; else the outputs [b, labels].

        The loss of a point is the mean negative log-softmax of its labels, 0 without any. The softmax is over this
        layer's labels, or with `over_nodes` over the labels of all nodes' parts.
        """
        if labels is None:
            return super().forward(hidden)
        kind = hidden.device.type
        mixed = kind != _PLANNING and torch.is_autocast_enabled(kind)
        half = torch.get_autocast_dtype(kind) if mixed else None
        truth = _Truth(labels, hidden.dtype, self.first)
        loss: Tensor = _SoftmaxLoss.apply(hidden, self.weight, self.bias, truth, self.block, half, over_nodes)
        return loss

    def outputs(self, hidden: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The outputs of `hidden` in blocks of labels: the first label, and outputs [b, up to block]."""
        for first in range(0, self.out_features, self.block):
            own = slice(first, first + self.block)
            yield self.first + first, F.linear(hidden, self.weight[own], self.bias[own])


class ExtremeNetwork(nn.Module):
    """One hidden layer with ReLU between sparse features and labels."""

    def __init__(self, features: int, hidden: int, labels: int, block: int) -> None:
        super().__init__()
        self.input = SparseLinear(features, hidden)
        self.relu = nn.ReLU()
        self.output = LabelLayer(hidden, labels, block)

    def hidden(self, points: SparseBatch) -> Tensor:
        """The hidden layer, float32 [b, hidden]."""
        activations: Tensor = self.relu(self.input(points))
        return activations

    def forward(self, points: SparseBatch, labels: SparseBatch | None = None) -> Tensor:
        """The mean loss if `labels` are given, else all outputs; see `LabelLayer`."""
        loss: Tensor = self.output(self.hidden(points), labels)
        return loss


class ExtremePart(ExtremeNetwork):
    """A node's part of an `ExtremeNetwork`: `units` hidden units, and labels `own`, which see all units."""

    def __init__(
        self, features: int, units: int, hidden: int, own: range, block: int, *, sparse_gradients: bool
    ) -> None:
        super().__init__(features, units, len(own), block)
        self.input.sparse_gradients = sparse_gradients
        self.output = LabelLayer(hidden, len(own), block, own.start)

    def forward(self, points: SparseBatch, labels: SparseBatch | None = None) -> Tensor:
        """Like `ExtremeNetwork.forward`, with zero for all other hidden units, and without other labels."""
        own = self.hidden(points)
        loss: Tensor = self.output(F.pad(own, (0, self.output.in_features - own.shape[1])), labels)
        return loss


class ExtremeSoftmax(WideSoftmax):
    """How nodes share an `ExtremeNetwork`."""

    def __init__(self, model: ExtremeNetwork) -> None:
        self._features, hidden = model.input.weight.shape
        self._block = model.output.block
        self.units = NeuronGroup("hidden", hidden, (Slot("input.weight", 1), Slot("input.bias", 0)))
        slots = (Slot("output.weight", 0), Slot("output.bias", 0))
        self.outputs = NeuronGroup("labels", model.output.out_features, slots)

    def part(self, units: int, outputs: range, *, sparse_gradients: bool = False) -> nn.Module:
        hidden = self.units.size
        return ExtremePart(self._features, units, hidden, outputs, self._block, sparse_gradients=sparse_gradients)

    def hidden(self, part: nn.Module, inputs: Any) -> Tensor:
        return cast(ExtremePart, part).hidden(inputs)

    def loss(self, part: nn.Module, hidden: Tensor, targets: Any, over_nodes: OverNodes) -> Tensor:
        loss: Tensor = cast(ExtremePart, part).output(hidden, targets, over_nodes)
        return loss

    def output_weights(self, part: nn.Module) -> tuple[Tensor, Tensor]:
        output = cast(ExtremePart, part).output
        return output.weight, output.bias

    def truth(self, targets: Any) -> TrueOutputs:
        return TrueOutputs(targets.offsets, targets.indices)


class _SoftmaxLoss(torch.autograd.Function):
    """The loss of `LabelLayer`. Between forward and backward pass it keeps one number for each point.

    Both passes compute the outputs block by block, so the backward pass computes them again. That costs a third
    more arithmetic, but saves memory for batch times labels.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        truth: "_Truth",
        block: int,
        half: torch.dtype | None,
        over_nodes: OverNodes | None,
    ) -> Tensor:
        total = hidden.new_zeros(())
        logs = hidden.new_full((len(hidden),), -torch.inf)
        for first, outputs in _blocks(hidden, weight, bias, block, half):
            rows, columns, shares = truth.within(first, outputs.shape[1])
            total -= (outputs[rows, columns] * shares).sum()
            logs = torch.logaddexp(logs, outputs.logsumexp(1))
        if over_nodes is not None:
            logs, total = over_nodes(logs, total)
        total += (logs * truth.labelled).sum()
        ctx.save_for_backward(hidden, weight, bias, logs)
        ctx.truth, ctx.block, ctx.half = truth, block, half
        return total / len(hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, logs = ctx.saved_tensors
        truth, scale = ctx.truth, gradient / len(hidden)
        of_hidden, of_weight, of_bias = torch.zeros_like(hidden), torch.empty_like(weight), torch.empty_like(bias)
        narrow = hidden if ctx.half is None else hidden.to(ctx.half)
        for first, outputs in _blocks(hidden, weight, bias, ctx.block, ctx.half):
            own = slice(first, first + outputs.shape[1])
            rows, columns, shares = truth.within(first, outputs.shape[1])
            wrong = outputs.sub_(logs[:, None]).exp_().mul_(truth.labelled[:, None])
            wrong[rows, columns] -= shares  # a point has a label at most once
            wrong *= scale
            of_bias[own] = wrong.sum(0)
            wrong = wrong.to(narrow.dtype)
            of_hidden += wrong @ weight[own].to(narrow.dtype)
            if ctx.half is None:
                torch.mm(wrong.t(), hidden, out=of_weight[own])
            else:
                of_weight[own] = wrong.t() @ narrow
        return of_hidden, of_weight, of_bias, None, None, None, None


class _Truth:
    """The labels of a batch, sorted, with the point of each and its share of the point's loss.

    `within` counts labels from `first`.
    """

    def __init__(self, labels: SparseBatch, kind: torch.dtype, first: int) -> None:
        self._first = first
        counts = labels.offsets.diff()
        self.labelled = (counts > 0).to(kind)
        self._labels, order = labels.indices.sort(stable=True)
        self._rows = labels.row_of_entry()[order]
        self._shares = counts.to(kind).reciprocal()[self._rows]

    def within(self, first: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Points, labels (counted from `first`) and shares of the labels from `first` to `first + count`."""
        if self._labels.device.type == _PLANNING:  # as if all labels were in the block
            return self._rows, self._labels, self._shares
        first += self._first
        edges = self._labels.new_tensor([first, first + count])
        start, end = torch.searchsorted(self._labels, edges).tolist()
        return self._rows[start:end], self._labels[start:end] - first, self._shares[start:end]


def _blocks(
    hidden: Tensor, weight: Tensor, bias: Tensor, block: int, half: torch.dtype | None
) -> Iterator[tuple[int, Tensor]]:
    """The first label and the outputs of each block; products in type `half` if given."""
    kind = hidden.device.type
    with nullcontext() if kind == _PLANNING else torch.autocast(kind, enabled=False):
        for first in range(0, len(weight), block):
            own = slice(first, first + block)
            if half is None:
                yield first, torch.addmm(bias[own], hidden, weight[own].t())
            else:
                yield first, (hidden.to(half) @ weight[own].to(half).t()).to(hidden.dtype) + bias[own]
