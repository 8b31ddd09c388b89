"""Ranges in which `istbench tune` tries the values of a method's option, beside the option itself."""

from dataclasses import dataclass
from typing import Literal

Scale = Literal["log", "linear"]


@dataclass(frozen=True, kw_only=True)
class Tunable:
    """The range of an option, in its field's metadata under `tune`. An int option has whole numbers only.

    Attributes:
        low, high: both ends, included.
        of_default: whether the ends are multiples of the default that the workload gives the method.
        scale: equal ratios (log) or equal differences (linear) are equally likely.
        costs: whether the option also changes the seconds or the bytes of a step. Trials of equal steps cannot
            judge such an option, because the cheaper value looks worse or equal: it is tuned by seconds only.
    """

    low: float
    high: float
    of_default: bool = False
    scale: Scale = "linear"
    costs: bool = False


LEARNING_RATE = Tunable(low=0.1, high=30, of_default=True, scale="log")
"""Two and a half decades; most defaults are cautious, so there is more room above."""

LOCAL_STEPS = Tunable(low=0.25, high=4, of_default=True, scale="log", costs=True)

OUTER_RATE = Tunable(low=0.05, high=1.5, scale="log")
"""Short rounds may want a tenth of the 0.7 that long rounds want."""

OUTER_MOMENTUM = Tunable(low=0, high=0.95)

ACCUMULATED = Tunable(low=1, high=8, scale="log", costs=True)
"""Minibatches in an optimizer step."""
