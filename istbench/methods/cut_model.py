"""A model with a wide softmax, cut over the nodes; the base of its methods, and their three small collectives.

Each node keeps its own hidden units and its own outputs.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.fabric import Fabric
from istbench.methods.base import Method
from istbench.methods.footprint import Footprint, PlannedNode, tensor_bytes, trained
from istbench.workloads.base import Batch, Workload
from istbench.workloads.wide_softmax import HAS_ONE, WideSoftmax

_VALUES_AT_ONCE = 2**24
_FLOAT = 4  # bytes


def even_cut(size: int, parts: int) -> list[range]:
    """`range(size)` in `parts` runs whose lengths differ by at most one."""
    edges = [size * part // parts for part in range(parts + 1)]
    return [range(first, last) for first, last in itertools.pairwise(edges)]


def wide_softmax(method: str, model: nn.Module, workload: Workload, world_size: int) -> WideSoftmax:
    """The wide softmax of `model`, with a unit and an output for each of `world_size` nodes.

    Raises:
        UserError: if the workload has none, or it has too few units or outputs.
    """
    softmax = workload.wide_softmax(model)
    if softmax is None:
        raise UserError(
            f"{method} splits a wide softmax over the nodes, and workload {workload.name!r} has none; "
            f"{HAS_ONE} has one"
        )
    for group, what in ((softmax.outputs, "an output"), (softmax.units, "a hidden unit")):
        if group.size < world_size:
            raise UserError(
                f"{method} needs {what} for each node, but {group.name!r} has {group.size} for {world_size} nodes; "
                "use fewer nodes or a wider model"
            )
    return softmax


def largest_part(softmax: WideSoftmax, world_size: int) -> nn.Module:
    """The largest part of a node, on the meta device."""
    units, outputs = (-(-group.size // world_size) for group in (softmax.units, softmax.outputs))
    with torch.device("meta"):
        return softmax.part(units, range(outputs))


def _overlap(one: range, other: range) -> range:
    """The numbers in both ranges; an empty range at the start of `one` if there are none."""
    first, last = max(one.start, other.start), min(one.stop, other.stop)
    return range(first, last) if first < last else one[:0]


class HiddenExchange:
    """The collectives of a step over `fabric`; `units` has the hidden units of each node.

    All nodes send equally many values: a node with one unit fewer adds zeros.
    """

    def __init__(self, fabric: Fabric, units: Sequence[range]) -> None:
        self._fabric, self._units = fabric, units
        self._most = max(map(len, units))

    def gather(self, own: Tensor) -> Tensor:
        """All hidden units [b, units], from this node's `own` [b, own units]: an all-gather."""
        if self._fabric.world_size == 1:
            return own
        parts = own.new_zeros(len(self._units), self._most, len(own))
        mine = parts[self._fabric.rank]
        mine[: own.shape[1]] = own.t()
        self._fabric.all_gather_async(parts.view(-1), mine.view(-1), "gathering the hidden layer").wait()
        filled = [part[: len(units)] for part, units in zip(parts, self._units, strict=True)]
        return torch.cat(filled).t().contiguous()

    def normalise(self, logs: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """`logs` [b], logarithms of sums of exponentials, and the number `total`, over all nodes: an all-gather."""
        if self._fabric.world_size == 1:
            return logs, total
        parts = self.each(torch.cat([logs, total.reshape(1)]), "normalising the softmax")
        return parts[:, :-1].logsumexp(0), parts[:, -1].sum()

    def each(self, mine: Tensor, name: str) -> Tensor:
        """Every node's `mine`, contiguous and of one shape, in the order of ranks: an all-gather."""
        if self._fabric.world_size == 1:
            return mine[None]
        parts = mine.new_empty(self._fabric.world_size, *mine.shape)
        self._fabric.all_gather_async(parts.view(-1), mine.view(-1), name).wait()
        return parts

    def scatter(self, gradient: Tensor) -> Tensor:
        """The gradient of this node's own hidden units, from all nodes' `gradient` [b, units]: a reduce-scatter."""
        count = self._fabric.world_size
        if count == 1:
            return gradient
        parts = gradient.new_zeros(count, self._most, len(gradient))
        for part, units in zip(parts, self._units, strict=True):
            part[: len(units)] = gradient[:, units.start : units.stop].t()
        mine = torch.empty_like(parts[0])
        what = "adding up the gradient of the hidden layer"
        self._fabric.reduce_scatter_mean_async(mine.view(-1), parts.view(-1), what).wait()
        return mine[: len(self._units[self._fabric.rank])].t() * count


class CutMethod(Method):
    """One optimizer step on one minibatch, of a model whose hidden units and outputs are split over nodes."""

    batches = "replicated"
    scheduled = True
    own_object = "rebuilt"
    interrupts = "exchanges the hidden layer inside a forward pass"

    def _take(
        self, model: nn.Module, workload: Workload, fabric: Fabric, *, sparse_gradients: bool = False
    ) -> None:
        """Make this node's part of `model` (meta device), with its initial values."""
        self._full, self._fabric = model, fabric
        self._softmax = softmax = wide_softmax(self.name, model, workload, fabric.world_size)
        # The hidden units and the outputs of every node.
        self._units = even_cut(softmax.units.size, fabric.world_size)
        self._outputs = even_cut(softmax.outputs.size, fabric.world_size)
        self._places = {
            name: (self._units if group == softmax.units else self._outputs, dim)
            for name, (group, dim) in softmax.cuts().items()
        }
        with torch.device("meta"):
            own = len(self._units[fabric.rank]), self._outputs[fabric.rank]
            part = softmax.part(*own, sparse_gradients=sparse_gradients)
        self._part = part.to_empty(device=fabric.device)
        with torch.no_grad():
            for name, parameter in self._part.named_parameters():
                self._fill(name, parameter, workload)
        self._exchange = HiddenExchange(fabric, self._units)

    def _fill(self, name: str, parameter: Tensor, workload: Workload) -> None:
        """Give `parameter` its initial values, some rows at a time."""
        cut, dim = self._places[name]
        own, shape = cut[self._fabric.rank], self._full.get_parameter(name).shape
        rows = torch.arange(shape[0]) if dim else torch.arange(own.start, own.stop)
        place = 0
        for some in rows.split(max(1, _VALUES_AT_ONCE // math.prod(shape[1:]))):
            values = workload.initial_rows(self._full, name, some, self.seed)
            parameter[place : place + len(some)] = values.narrow(dim, own.start, len(own)) if dim else values
            place += len(some)

    @torch.no_grad()
    def assemble(self) -> nn.Module | None:
        lead = self._fabric.rank == 0
        full = copy.deepcopy(self._full).to_empty(device=self._fabric.device) if lead else None
        for name, parameter in self._full.named_parameters():
            self._bring(name, 0, 0, len(parameter), None if full is None else full.get_parameter(name))
        return full

    def blocks(self) -> Callable[[str, int, int, int], Tensor | None]:
        return self._block

    @torch.no_grad()
    def _block(self, name: str, dim: int, first: int, last: int) -> Tensor | None:
        shape = list(self._full.get_parameter(name).shape)
        shape[dim] = last - first
        block = self._part.get_parameter(name).new_empty(shape) if self._fabric.rank == 0 else None
        self._bring(name, dim, first, last, block)
        return block

    def _bring(self, name: str, dim: int, first: int, last: int, block: Tensor | None) -> None:
        """Fill `block`, on rank 0, with these entries, node by node."""
        cut, across = self._places[name]
        mine, own = self._part.get_parameter(name), cut[self._fabric.rank]
        shape = list(self._full.get_parameter(name).shape)
        start, shape[dim] = (first, last - first) if dim == across else (0, last - first)
        within = [_overlap(run, range(first, last)) if dim == across else run for run in cut]
        held = mine if dim == across else mine.narrow(dim, first, last - first)
        kept = within[self._fabric.rank]
        held = held.narrow(across, max(0, kept.start - own.start), len(kept))
        sizes = [math.prod(shape) // shape[across] * len(run) for run in within]
        for node, values in self._fabric.gather_to_zero(held.contiguous().view(-1), sizes, f"assembling {name}"):
            if block is not None and len(values):
                target = block.narrow(across, within[node].start - start, len(within[node]))
                target.copy_(values.view(target.shape))

    def evaluate_part(self, workload: Workload, batches: Iterator[Batch]) -> dict[str, float]:
        return workload.evaluate_part(self._part, self._exchange, batches)

    @classmethod
    def check(cls, options: Any, model: nn.Module, workload: Workload, world_size: int) -> None:
        wide_softmax(cls.name, model, workload, world_size)

    def _footprint_of(
        self, part: nn.Module, units: int, samples: int, world_size: int, *, normaliser: int
    ) -> Footprint:
        """The footprint of a node with `part` (meta device) of a model with so many hidden units.

        In a planned step the collectives come after the computing. normaliser: bytes of the all-gather that
        normalises the softmax.
        """
        each = _FLOAT * -(-units // world_size) * samples  # a node's part of the hidden layer

        def rounds(node: PlannedNode) -> Iterator[None]:
            while True:
                node.steps(1)
                if world_size > 1:
                    node.wait([node.post("all_gather", each)])
                    node.wait([node.post("all_gather", normaliser)])
                    node.wait([node.post("reduce_scatter", each * world_size)])
                yield

        return Footprint(
            model=part,
            rounds=rounds,
            optimizer_state=len(self.options.slots) * tensor_bytes(trained(part)),
            stepped=tuple(trained(part)),
            build=self.options.build,
            samples=samples,
            buffers=2 * each * world_size if world_size > 1 else 0,  # the parts of all nodes, in both directions
        )
