"""When tables are built anew."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RebuildSchedule:
    """After `first` steps, then after intervals that grow by a factor of e to the power of `growth` each.

    SLIDE, section 3.1.3: weights change ever less. 0 is a fixed interval. A function of the step alone, so nothing
    is to be saved.
    """

    first: int = 50
    growth: float = 0.1

    def __post_init__(self) -> None:
        if self.first < 1 or not 0 <= self.growth < math.inf:
            raise ValueError(f"no schedule starts after {self.first} steps and grows by {self.growth}")

    def rebuilds(self, step: int) -> int:
        """How many rebuilds are due once `step` steps are done."""
        if self.growth == 0:
            return step // self.first
        # The k-th is due after first * (1 + e^g + ... + e^((k - 1) g)) steps, rounded up.
        count = int(math.log1p(step * math.expm1(self.growth) / self.first) / self.growth)
        return next(number for number in (count + 1, count, count - 1) if self._step(number) <= step)

    def due(self, step: int) -> bool:
        """Whether one is due between the `step`-th step, counted from 1, and the next."""
        return self.rebuilds(step) > self.rebuilds(step - 1)

    def _step(self, number: int) -> int:
        return math.ceil(self.first * math.expm1(self.growth * number) / math.expm1(self.growth))
