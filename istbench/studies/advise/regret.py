"""The advice against the truth measured afterwards: regret."""

import math
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from istbench.base.options.texts import Text
from istbench.studies.advise.answer import Advice


class MeasuredAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A line of advice.jsonl.

    truth: measured seconds to the target by label of a candidate; None for a miss. Candidates without a measurement
    are not in it.
    """

    advice: Advice
    truth: Annotated[dict[Text, float | None], Meta(max_length=1000)]


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
