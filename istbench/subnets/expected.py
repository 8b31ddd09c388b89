"""How much a repartition moves, in the mean over random partitions: what `exchange` moves, counted beforehand."""

from collections.abc import Mapping
from dataclasses import dataclass

from istbench.subnets.layout import CutTensor, Layout
from istbench.subnets.streaming import Timetable


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Values, of one of n nodes, in the mean over rounds or waves.

    Attributes:
        gathered: those that it takes out of its tensors, for others and for itself.
        sent: those of them that go to others; as many arrive.
    """

    gathered: float
    sent: float


def expected_moves(tensor: CutTensor, nodes: int) -> Moved:
    """What a repartition moves of `tensor`.

    A unit is on a node with probability 1/n, in every round anew. Of a tensor cut along one axis everything in a
    subnet is gathered, and stays with probability 1/n. Of one cut along two, so is a subnet's 1/n^2, whose entries
    go to a subnet or home; and of its home's 1/n those that no node trained and some node trains next.
    """
    values, n = tensor.shape.numel(), nodes
    if n == 1:
        return Moved(gathered=0, sent=0)
    if not tensor.needs_home:
        return Moved(gathered=values / n, sent=values / n * (n - 1) / n)
    return Moved(gathered=values / n**2 * (1 + (n - 1) / n), sent=values * (n - 1) * (2 * n - 1) / n**4)


def expected_flights(layout: Layout, timetable: Timetable, number: int, weights: Mapping[str, int]) -> Moved:
    """What wave `number` of a streaming round moves of all tensors, each value counted `weights` times by tensor.

    A unit that moves takes along its entries of tensors cut along one axis. Of those cut along two, it leaves
    1/n of its entries behind, for home, and meets another 1/n, from home; 1/n of all homes are on the same node.
    """
    n = timetable.world_size
    gathered = sent = 0.0
    groups = {group.name: group for group in layout.groups if timetable.takes(group, number)}
    for cut in layout.cut:
        for axis in cut.axes:
            if axis.group not in groups:
                continue
            group = groups[axis.group]
            moving = timetable.moving_share(group) / timetable.pieces(group)
            values = weights[cut.name] * cut.shape.numel() * moving / n
            gathered += values if not cut.needs_home else 2 * values / n
            sent += values if not cut.needs_home else 2 * values / n * (n - 1) / n
    return Moved(gathered=gathered, sent=sent)
