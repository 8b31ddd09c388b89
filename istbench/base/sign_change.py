"""The place where a falling function changes its sign, found with few calls."""

import math
from collections.abc import Callable


def sign_change(
    function: Callable[[float], float],
    low: float,
    high: float,
    *,
    near: float,
    exact: float = 0.0,
    between: Callable[[float, float, float], float] = lambda low, high, share: low + share * (high - low),
) -> tuple[float, float]:
    """The ends of a range between `low` and `high`, at most `near` long, in which `function` changes its sign.

    It is above 0 at the low end of the range, and not at the high end. Both ends are one place if the value there
    is less than `exact` from 0, and `low` or `high` if the sign is the same everywhere. The search is false
    position by the Illinois rule, and takes the middle every fourth time.

    between: a place inside a range, at this share of the way to its high end.
    """
    above, below = function(low), function(high)
    if above <= 0 or below > 0:
        return (low, low) if above <= 0 else (high, high)
    before, turn = 0.0, 0
    while high - low > near:
        turn += 1
        share = above / (above - below) if math.isfinite(above - below) and turn % 4 else 0.5
        place = between(low, high, share)
        value = function(place)
        if abs(value) < exact:
            return place, place
        if value > 0:
            low, above, below = place, value, below / 2 if before > 0 else below
        else:
            high, below, above = place, value, above / 2 if before < 0 else above
        before = value
    return low, high
