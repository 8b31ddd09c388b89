"""The weights of unequal nodes (`--shares`): they make of the plain mean over nodes the mean over samples."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Factors of this node's values before a mean; all 1 if the nodes have equally many samples.

    Attributes:
        node: before the mean over all nodes. inside: before that over the nodes of its group. group: before that
            over the groups, of values that all nodes of a group have.
    """

    node: float = 1.0
    inside: float = 1.0
    group: float = 1.0

    @classmethod
    def of(cls, samples: Sequence[int], rank: int, group: int = 1) -> "Weights":
        """The weights of `rank` in groups of `group` nodes. samples: of each node, by rank; empty if equal."""
        if not samples:
            return cls()
        first = rank - rank % group
        own, together = sum(samples[first : first + group]), sum(samples)
        return cls(
            node=samples[rank] * len(samples) / together,
            inside=samples[rank] * group / own,
            group=own * (len(samples) // group) / together,
        )


def weigh(tensor: Tensor, weight: float) -> None:
    """Multiply `tensor` by `weight` in place; by 1, leave it as it is."""
    if weight != 1:
        tensor.mul_(weight)
