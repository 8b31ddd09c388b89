"""What nodes that share a wide softmax send one another in a step: three collectives, all small."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from istbench.fabric import Fabric
from istbench.footprint import PlannedNode

_FLOAT = 4


class HiddenExchange:
    """The exchanges of a step over `fabric`, whose nodes have the hidden units `units` each.

    Nodes send as many values each, those with fewer units zeros in place of the missing one.
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


def planned_rounds(
    units: int, samples: int, world_size: int, *, normaliser: Sequence[int]
) -> Callable[[PlannedNode], Iterator[None]]:
    """Steps as a plan has them, exchanges after the computing; `normaliser`: bytes that are gathered for it."""
    each = _FLOAT * -(-units // world_size) * samples

    def rounds(node: PlannedNode) -> Iterator[None]:
        while True:
            node.steps(1)
            if world_size > 1:
                node.wait([node.post("all_gather", each)])
                for size in normaliser:
                    node.wait([node.post("all_gather", size)])
                node.wait([node.post("reduce_scatter", each * world_size)])
            yield

    return rounds


def exchange_buffers(units: int, samples: int, world_size: int) -> int:
    """Bytes of what a step's exchanges hold at a time: the parts of all nodes, there and back."""
    return 2 * _FLOAT * -(-units // world_size) * world_size * samples if world_size > 1 else 0
