"""The advice against the truth measured afterwards: regret, and how often odds of 0.9 were right."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta

from istbench.base.options.texts import Text
from istbench.studies.advise.answer import Advice

BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Edges of the bins of odds. The last one includes odds of 1."""


class MeasuredAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A line of advice.jsonl.

    truth: measured seconds to the target by label of a candidate; None for a miss. Candidates without a measurement
    are not in it.
    """

    advice: Advice
    truth: Annotated[dict[Text, float | None], Meta(max_length=1000)]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Advice whose odds lie from `low` to below `high`.

    Attributes:
        advised, right: how many, and how many of them were first in truth.
        expected: how many would be, by the mean of their odds.
    """

    low: float
    high: float
    advised: int
    right: int
    expected: float


def regret(advice: Advice, truth: Mapping[str, float | None]) -> float | None:
    """Measured seconds of the recommended candidate over those of the fastest, less one.

    0 if it was the fastest; infinite if it missed the target and another did not. None if nothing was recommended,
    if the recommended candidate was not measured, or if nobody reached the target.
    """
    if advice.best is None or advice.best.label not in truth:
        return None
    times = {label: math.inf if seconds is None else seconds for label, seconds in truth.items()}
    fastest, own = min(times.values()), times[advice.best.label]
    if math.isinf(fastest):
        return None
    return own / fastest - 1 if fastest > 0 else 0.0 if own == fastest else math.inf


def calibration(checked: Iterable[MeasuredAdvice], edges: Sequence[float] = BINS) -> tuple[Calibration, ...]:
    """The share of advice whose candidate was really first, by bins of its odds, without empty bins.

    Advice counts if at least one other candidate was measured too.
    """
    pairs = [
        (one.advice.odds, found == 0.0)
        for one in checked
        if len(one.truth) > 1 and (found := regret(one.advice, one.truth)) is not None
    ]
    bins = []
    for low, high in pairwise(edges):
        inside = [(odds, right) for odds, right in pairs if low <= odds < high or odds == high == edges[-1]]
        if inside:
            bins.append(
                Calibration(
                    low=low,
                    high=high,
                    advised=len(inside),
                    right=sum(right for _, right in inside),
                    expected=math.fsum(odds for odds, _ in inside),
                )
            )
    return tuple(bins)
