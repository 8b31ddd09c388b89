"""One node alone: the target that it reaches, and whether its minutes are enough for one that means something."""

import math
from collections.abc import Sequence

import numpy as np

from istbench.results.curves import Curve, time_to_target
from istbench.results.metrics import Metric
from istbench.studies.advise.signed_curve import SignedCurve

_DECIMALS, _FIGURES, _LARGE, _MOST_DECIMALS = 2, 3, 10.0, 15
_STEEP = 0.15  # of its progress in the second half of its steps
_MOST_DOUBLINGS = 10
_TELLING = 8  # values after which equal ones are no chance
_SOLVED = 1e-4  # of the value before training: a loss below it, though not 0, is a matter of digits


def level_of(curve: Curve) -> tuple[float, float] | None:
    """The best value of `curve` less the noise of an evaluation, rounded to the easier side; train seconds to it.

    The best of many evaluations is one that noise lifts, and a longer run may not repeat it. The level is still
    better than the value before training. A metric that falls to nearly 0 is not chased below a ten-thousandth of
    that value. None if no evaluation after that one is better, or if the value stayed
    the same: such a model gives one answer to everything.
    """
    values = [value for value in curve.values if value is not None]
    best = curve.best()
    if best is None or not values or not curve.metric.better(best, values[0]) or _same_answer(values):
        return None
    noise = SignedCurve.of(curve).noise
    steady = best + noise if curve.metric.lower_is_better else best - noise
    if curve.metric.lower_is_better and steady > 0:
        steady = max(steady, _SOLVED * values[0])
    level = _easier(steady if curve.metric.better(steady, values[0]) else best, values[0], curve.metric)
    there = time_to_target(curve, level)
    return None if there is None else (level, there.seconds)


def _same_answer(values: Sequence[float]) -> bool:
    """Whether the later three quarters of at least eight `values` are one, and neither nothing nor everything."""
    later = set(values[len(values) // 4 :])
    return len(values) >= _TELLING and len(later) == 1 and not later & {0.0, 1.0, 100.0}


def _easier(best: float, start: float, metric: Metric) -> float:
    towards = math.ceil if metric.lower_is_better else math.floor
    size = math.floor(math.log10(abs(best))) if best else 0
    for decimals in range(_FIGURES - 1 - size if abs(best) >= _LARGE else max(_DECIMALS, 1 - size), _MOST_DECIMALS):
        level = round(towards(round(best * 10.0**decimals, 6)) / 10.0**decimals, max(0, decimals))
        if metric.better(level, start):
            return level
    return best


def progress_by_half(curve: Curve) -> tuple[float, float]:
    """Shares of the progress of `curve` in the two halves of its steps; (0, 0) without progress.

    Progress is that of the best value so far, from the one before training.
    """
    own = SignedCurve.of(curve)
    if own.start is None or not len(own.steps) or own.best[-1] <= own.start:
        return 0.0, 0.0
    best = np.maximum(own.best, own.start)
    middle = np.interp(own.last / 2, [0.0, *own.steps], [own.start, *best])
    first = float((middle - own.start) / (best[-1] - own.start))
    return first, 1 - first


def too_short(curve: Curve, minutes: float) -> str:
    """A sentence if one node was still climbing steeply at the end of `curve`; empty if not.

    It names the minutes that would do: each doubling of the time makes the next gain smaller by the ratio of the
    two halves.
    """
    first, second = progress_by_half(curve)
    if not first and not second:
        return "One node learned nothing in its share of the time: give more --minutes, or another --set lr."
    if second < _STEEP:
        return ""
    told = (
        f"One node made {second:.0%} of its progress in the second half of its time, so this target is an early one"
    )
    gain, whole = second, 1.0
    for doublings in range(1, _MOST_DOUBLINGS + 1):
        gain *= second / first if first > 0 else 1.0
        whole += gain
        if gain / whole < _STEEP:
            return f"{told}: about --minutes {_two_figures(minutes * 2**doublings)} would do."
    return f"{told}, and its curve does not say how many --minutes would do."


def _two_figures(value: float) -> str:
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit - 1e-9) * unit:g}"
