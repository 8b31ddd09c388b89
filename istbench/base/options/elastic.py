"""The smallest and the largest number of nodes of a run whose group may change."""

import re
from typing import Any

from istbench.base.decode import Written
from istbench.base.errors import UserError
from istbench.base.options.numbers import MOST_NODES

_FORM = re.compile(r"(\d{1,6}):(\d{1,6})", re.ASCII)


class Elastic(Written):
    """At least `least` nodes and at most `most`, written `2:4`."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    @classmethod
    def decode(cls, value: Any) -> "Elastic":
        """The numbers in a header or on a command line.

        Raises:
            ValueError: for any other value; the message gives the form.
        """
        found = _FORM.fullmatch(value) if isinstance(value, str) else None
        least, most = map(int, found.groups()) if found else (0, 0)
        if not 1 <= least < most <= MOST_NODES:
            raise ValueError("must be two numbers of nodes MIN:MAX, the first one smaller, such as 2:4")
        return cls(least, most)

    def check(self, nodes: int) -> None:
        """Refuse another most than the `nodes` of the run.

        Raises:
            UserError: with the words to type.
        """
        if self.most != nodes:
            raise UserError(
                f"--elastic {self} has at most {self.most} nodes, and the run has {nodes}; give --nodes "
                f"{self.most}, or --elastic {min(self.least, max(1, nodes - 1))}:{nodes}"
            )

    def sizes(self) -> range:
        return range(self.least, self.most + 1)

    def encode_plain(self) -> str:
        return f"{self.least}:{self.most}"
