"""The interval between two evaluations: a number of local steps, or of train seconds."""

import math
import re
from decimal import Decimal
from typing import Any

from istbench.base.decode import Written

_MOST_STEPS, _MOST_SECONDS = 2**40, 1e9
_SECONDS = r"\+?(\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})s"


class Interval(Written):
    """Local steps, written `200`, or train seconds, written `30s`. One of the two is set."""

    def __init__(self, *, steps: int | None = None, seconds: float | None = None) -> None:
        self.steps, self.seconds = steps, seconds

    @classmethod
    def decode(cls, value: Any) -> "Interval":
        """The interval in a suite, a header or a command line.

        Raises:
            ValueError: for any other value; the message gives the two forms.
        """
        if isinstance(value, str) and re.fullmatch(r"\+?\d{1,15}", value, re.ASCII):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_STEPS:
            return cls(steps=value)
        found = re.fullmatch(_SECONDS, value, re.ASCII) if isinstance(value, str) else None
        seconds = float(found[1]) if found else math.nan
        if 0 < seconds <= _MOST_SECONDS:
            return cls(seconds=seconds)
        raise ValueError("must be local steps, such as 200, or train seconds, such as 30s")

    def encode_plain(self) -> int | str:
        if self.steps is not None:
            return self.steps
        digits = format(Decimal(repr(self.seconds)), "f")  # all digits, and no exponent
        return f"{digits.removesuffix('.0')}s"
