"""Statistics of a table entry over seeds, without input or output.

A seed that missed its target counts as infinity, so a method gains nothing from failing seeds.
"""

import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BOOTSTRAP_FROM = 5
_RESAMPLES = 2000
_CONFIDENCE = 0.95
_Middle = Callable[[float, float], float]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median over seeds with its interval, in the unit of the values; an infinite value stands for a miss.

    low, high: minimum and maximum below `BOOTSTRAP_FROM` seeds, from there a bootstrap 95 % interval.
    reached, seeds: number of finite seeds, and of all seeds.
    """

    median: float
    low: float
    high: float
    reached: int
    seeds: int


@dataclass(frozen=True, kw_only=True)
class SpeedUp:
    """Seconds of the baseline to a target over those of a method, from seeds that both ran.

    ratio: None if there is no number to print. Then `baseline_missed` gives the reason: true if the baseline missed
    the target in at least half of the pairs, and the method did not ("> budget"); false if the method missed it.
    pairs, baseline_reached: number of pairs, and of those whose baseline reached the target.
    """

    ratio: Estimate | None
    baseline_missed: bool
    pairs: int
    baseline_reached: int


def interval_name(seeds: int) -> str:
    """The kind of interval for this number of seeds."""
    return "min–max" if seeds < BOOTSTRAP_FROM else "bootstrap 95 % interval"


def median(values: Sequence[float]) -> float:
    """The middle value. Of an even number, the mean of the two middle values, infinite if either is infinite.

    Raises:
        ValueError: without values.
    """
    return _mean(*_middle_two(values))


def estimate(values: Sequence[float]) -> Estimate:
    """The entry of a table from one value for each seed, of either infinite sign for a miss.

    Raises:
        ValueError: without values, or if one is NaN.
    """
    return _estimate(values, _mean)


def speed_up(baseline: Mapping[int, float], method: Mapping[int, float]) -> SpeedUp | None:
    """Seconds of `baseline` over seconds of `method`, by seed, infinity for a miss; None without pairs.

    Only seeds that both ran count. The ratio of a seed is 0 if the method missed, also if the baseline missed too.
    It is infinite if only the baseline missed. The entry has a number if the median over pairs is above 0 and
    finite. A pair has no ratio, and does not count, if one of the two reached the target before training began.
    """
    pairs = [
        (baseline[seed], method[seed])
        for seed in sorted(baseline.keys() & method.keys())
        if baseline[seed] > 0 and method[seed] > 0
    ]
    if not pairs:
        return None
    found = _estimate([_ratio(*pair) for pair in pairs], _mean_ratio)
    printable = 0 < found.median < math.inf
    return SpeedUp(
        ratio=found if printable else None,
        baseline_missed=found.median == math.inf,
        pairs=len(pairs),
        baseline_reached=sum(math.isfinite(seconds) for seconds, _ in pairs),
    )


def _ratio(baseline: float, method: float) -> float:
    return 0.0 if math.isinf(method) else baseline / method


def _middle_two(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        raise ValueError("median of no values")
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]


def _mean(lower: float, upper: float) -> float:
    """The median from the two middle values, which are the same value if the number of values is odd."""
    # The mean of two equal values must be that value; a sum of halves may round.
    if lower == upper:
        return lower
    whole = lower + upper
    return whole / 2 if math.isfinite(whole) or math.isinf(lower) or math.isinf(upper) else lower / 2 + upper / 2


def _mean_ratio(lower: float, upper: float) -> float:
    """The same for ratios, where 0 stands for a miss and has no mean with another number."""
    return 0.0 if lower == 0 else _mean(lower, upper)


def _estimate(values: Sequence[float], middle: _Middle) -> Estimate:
    if any(math.isnan(value) for value in values):
        raise ValueError("NaN among the values of an entry; write a miss as infinity")
    centre = middle(*_middle_two(values))
    low, high = min(values), max(values)
    if len(values) >= BOOTSTRAP_FROM and low < high:
        low, high = _bootstrap(tuple(values), middle)
    reached = sum(math.isfinite(value) for value in values)
    return Estimate(median=centre, low=low, high=high, reached=reached, seeds=len(values))


@functools.lru_cache(maxsize=4096)  # tables, charts and answers ask for the same intervals
def _bootstrap(values: tuple[float, ...], middle: _Middle) -> tuple[float, float]:
    """The percentile interval of the median, from the same resamples at every call.

    Percentiles are resampled medians without interpolation, because nothing lies between a number and a miss.
    """
    import numpy as np

    ordered, count = sorted(values), len(values)
    ranks = np.sort(np.argsort(np.argsort(values))[_drawn(count)], axis=1)
    # Few values have few pairs in the middle of a resample.
    pairs, of_resample = np.unique(ranks[:, (count - 1) // 2] * count + ranks[:, count // 2], return_inverse=True)
    found = [middle(ordered[pair // count], ordered[pair % count]) for pair in pairs.tolist()]
    medians = np.sort(np.array(found)[of_resample]).tolist()
    tail = (1 - _CONFIDENCE) / 2
    return medians[math.floor(tail * (_RESAMPLES - 1))], medians[math.ceil((1 - tail) * (_RESAMPLES - 1))]


@functools.cache
def _drawn(count: int) -> "NDArray[np.intp]":
    """Indices of `count` values in each resample [resamples, count]."""
    import numpy as np

    generator = random.Random(0)
    return np.array([generator.choices(range(count), k=count) for _ in range(_RESAMPLES)], dtype=np.intp)
