"""How much a repartition moves, in the mean over random partitions: what `exchange` moves, counted beforehand."""

from dataclasses import dataclass

from istbench.subnets.layout import CutTensor


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Values of one tensor, of one of n nodes, in the mean over rounds.

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
