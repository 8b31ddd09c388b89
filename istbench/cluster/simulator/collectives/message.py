"""What a collective is to the simulation: for each node the messages that it sends, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message that one node sends in a collective. Other nodes are told by how many ranks further on they are.

    Attributes:
        to: the receiver.
        after: it may go when the messages that its sender has received count at least so much together.
        counts: what it counts where it arrives.
        part_of: the node whose size of the operation it carries.
        parts: of how many equal parts of that it is one; infinity where it carries nothing.
    """

    to: int
    after: int
    counts: int = 1
    part_of: int = 0
    parts: float = 1.0


# The messages of the node at each place, which is its rank, counted from the root where there is one; or one row
# that is every node's.
Schedule: TypeAlias = Sequence[Sequence[Message]]
