"""Statistics of a table entry over seeds, without input or output.

A seed that missed its target counts as infinity, so a method gains nothing from failing seeds.
"""

import functools
import math
import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

_CONFIDENCE = 0.95
_Middle = Callable[[float, float], float]


@dataclass(frozen=True, kw_only=True)
class SeedMedian:
    """A median over seeds with its interval, in the unit of the values; an infinite value stands for a miss.

    low, high: two of the values, as many from either end. The interval holds the median over all seeds that there
        could be with a probability that follows from the number of seeds alone: `coverage`. It is the narrowest of
        at least 95 %, or the range of the values below six seeds, which cannot have that.
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

    ratio: SeedMedian | None
    baseline_missed: bool
    pairs: int
    baseline_reached: int


def finite(value: float | None) -> float | None:
    """`value` for programs: None for infinity (a miss) and NaN."""
    return value if value is not None and math.isfinite(value) else None


def coverage(seeds: int) -> float:
    """The probability that the interval of a `SeedMedian` of so many seeds holds the median over all seeds."""
    return _covered(seeds, _cut_off(seeds))


def interval_name(seeds: int) -> str:
    """The kind of interval for this number of seeds, with its coverage."""
    share = f"{100 * coverage(seeds):.3g} % interval"
    return share if _cut_off(seeds) else f"min–max, a {share}"


@functools.cache
def _cut_off(seeds: int) -> int:
    """The number of values at either end that are outside the interval."""
    return max((cut for cut in range(1, seeds) if _covered(seeds, cut) >= _CONFIDENCE), default=0)


def _covered(seeds: int, cut: int) -> float:
    """The coverage without `cut` values at either end: a seed is below the median as often as above it."""
    outside = sum(math.comb(seeds, below) for below in range(cut + 1))
    return 1 - outside * 2.0 ** (1 - seeds)


def median(values: Collection[float]) -> float:
    """The middle value. Of an even number, the mean of the two middle values, infinite if either is infinite.

    Raises:
        ValueError: without values.
    """
    return _mean(statistics.median_low(values), statistics.median_high(values))


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
    found = seed_median([_ratio(*pair) for pair in pairs], _mean_ratio)
    printable = 0 < found.median < math.inf
    return SpeedUp(
        ratio=found if printable else None,
        baseline_missed=found.median == math.inf,
        pairs=len(pairs),
        baseline_reached=sum(math.isfinite(seconds) for seconds, _ in pairs),
    )


def _ratio(baseline: float, method: float) -> float:
    return 0.0 if math.isinf(method) else baseline / method


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


def seed_median(values: Collection[float], middle: _Middle = _mean) -> SeedMedian:
    """The entry of a table from one value for each seed, of either infinite sign for a miss.

    middle: gives the median of the two middle values.

    Raises:
        ValueError: without values, or if one is NaN.
    """
    if any(math.isnan(value) for value in values):
        raise ValueError("NaN among the values of an entry; write a miss as infinity")
    centre = middle(statistics.median_low(values), statistics.median_high(values))
    ordered, cut = sorted(values), _cut_off(len(values))
    reached = sum(math.isfinite(value) for value in values)
    return SeedMedian(median=centre, low=ordered[cut], high=ordered[-1 - cut], reached=reached, seeds=len(values))
