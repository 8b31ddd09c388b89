"""What `istbench estimate` needs of a method, whose messages follow from the sizes of a model. Needs no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from istbench.methods.planned_node import PlannedRounds


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A model on `nodes` nodes.

    Attributes:
        values: of each trained parameter, in the order of the model. itemsize: bytes of a value.
        most: events of all nodes in a trace, about.
    """

    values: Sequence[int]
    itemsize: int
    nodes: int
    most: int

    @property
    def bytes(self) -> int:
        return sum(self.values) * self.itemsize


@dataclass(frozen=True, kw_only=True)
class SizePlan:
    """The plan of a method from sizes. `istbench estimate` has a row of each.

    An installed package adds its own by entry points of the group `istbench.size_plans`, each a `SizePlan`.

    Attributes:
        name: of the method.
        rounds: from sizes and the values of all `options`; None for values that the method refuses.
        options: those of the method that the plan knows, with their defaults; of a word all words, the default
            first.
        every: the option with the local steps of a round; empty for none.
        rows: further rows, by their options as typed. helps: what helps `ddp`, in the same way.
        many_messages: whether a large cluster has rows of it only if they are named.
        unknown: a form of the method whose messages do not follow, for the line about what is left out.
    """

    name: str
    rounds: Callable[[Sizes, Mapping[str, Any]], PlannedRounds | None]
    options: Mapping[str, Any] = field(default_factory=dict)
    every: str = ""
    rows: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    many_messages: bool = False
    unknown: str = ""
