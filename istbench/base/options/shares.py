"""The relative speeds of unequal nodes, and the division of a number of things by them."""

import math
import re
from collections.abc import Sequence
from typing import Any

from istbench.base.decode import Written
from istbench.base.errors import UserError
from istbench.base.options.numbers import MOST_NODES
from istbench.base.units import counted

_MEASURED = "speed"
_LARGEST = 1e6
_NUMBER = re.compile(r"\+?(\d{1,12}(\.\d{0,12})?|\.\d{1,12})(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)


class Shares(Written):
    """A relative speed for each node, by rank, written `.5,1,1`; or `speed`, which has each run measure them.

    speeds: empty if the run measures them.
    """

    def __init__(self, speeds: Sequence[float] = ()) -> None:
        self.speeds = tuple(float(f"{speed:.6g}") for speed in speeds)

    @classmethod
    def decode(cls, value: Any) -> "Shares":
        """The shares in a suite, a header or a command line.

        Raises:
            ValueError: for any other value; the message gives the two forms.
        """
        if value == _MEASURED:
            return cls()
        parts = value.split(",") if isinstance(value, str) else value
        if isinstance(parts, list | tuple) and 0 < len(parts) <= MOST_NODES:
            speeds = [_number(part) for part in parts]
            if all(0 < speed <= _LARGEST for speed in speeds):
                return cls(speeds)
        raise ValueError("must be speed, or a number above 0 for each node, such as .5,1,1")

    def check(self, nodes: int, where: str) -> None:
        """Refuse shares of another number of nodes; the message begins with `where`.

        Raises:
            UserError: if there is not a speed for each of `nodes` nodes.
        """
        if self.speeds and len(self.speeds) != nodes:
            numbers, many = counted(len(self.speeds), "number"), counted(nodes, "node")
            raise UserError(f"{where} has {numbers} for {many}; give one for each node, or speed to measure them")

    def encode_plain(self) -> str:
        return ",".join(f"{speed:g}" for speed in self.speeds) or _MEASURED


def _number(part: Any) -> float:
    if isinstance(part, str):
        return float(part) if _NUMBER.fullmatch(part.strip()) else math.nan
    return float(part) if isinstance(part, int | float) and not isinstance(part, bool) else math.nan


def in_proportion(total: int, shares: Sequence[float], *, least: int = 0) -> tuple[int, ...]:
    """`total` things in proportion to `shares`, by largest remainder; of equal remainders, the first is larger.

    least: of each, taken from the largest. `total` must be enough for it.
    """
    whole = math.fsum(shares)
    exact = [total * share / whole for share in shares]
    counts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(counts)), key=lambda place: (round(counts[place] - exact[place], 9), place))
    for place in by_remainder[: total - sum(counts)]:
        counts[place] += 1
    while min(counts) < least:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(min(counts))] += 1
    return tuple(counts)
