"""Advice in files: the last on a results directory in advice.json, and with its truth in advice.jsonl; regret."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from istbench.base.decode import decode_json, read_bytes
from istbench.base.files import write_errors, writing_whole
from istbench.base.options.texts import Text
from istbench.studies.advise.answer import Advice

_NAME = "advice.json"


def save_advice(advice: Advice, out: Path) -> Path:
    """Write `advice` to `out`, over an earlier one; returns the file.

    Raises:
        UserError: if it cannot be written.
    """
    path = out / _NAME
    with write_errors(path), writing_whole(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(advice), indent=1) + b"\n")
    return path


def load_advice(out: Path) -> Advice | None:
    """The advice in `out`; None if it has none.

    Raises:
        UserError: if the file holds no advice.
    """
    path = out / _NAME
    if not path.exists():
        return None
    content = read_bytes(path, "the advice of `istbench advise`")
    return decode_json(content, Advice, str(path), "delete it, or run `istbench advise` again")


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
