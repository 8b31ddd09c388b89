"""Bandwidths, times and counts as people type them: `100mbit`, `1 Gbit/s`, `20ms`, `7B`; and times as a clock."""

import math
import re
from collections.abc import Callable

from istbench.base.errors import UserError, shown

FASTEST = 1e15
"""Bits/s of the fastest link."""
LONGEST_S = 3600.0

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TIMES = {"us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}
_PERIODS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_LONGEST_PERIOD_S = 1e10
_NUMBER = r"(\+?(?:\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})(?:e[+-]?\d{1,3})?)"
_BITS = re.compile(rf"{_NUMBER}\s*([kmgt]?)(?:bits?(?:/s)?|bps|bit/sec)", re.ASCII | re.IGNORECASE)
_SHORT_BITS = re.compile(rf"{_NUMBER}\s*([kMGT])b/s", re.ASCII)  # Mb/s are bits; of mb/s nobody knows
_BYTES = re.compile(rf"{_NUMBER}\s*([kmgt]?)i?b(?:ytes?)?(?:/s|ps)?", re.ASCII | re.IGNORECASE)
_TIME = re.compile(rf"{_NUMBER}\s*({'|'.join(_TIMES)})", re.ASCII | re.IGNORECASE)
_PERIOD = re.compile(rf"{_NUMBER}\s*({'|'.join(_PERIODS)})", re.ASCII | re.IGNORECASE)
_BARE = re.compile(_NUMBER, re.ASCII | re.IGNORECASE)
_COUNT = re.compile(rf"{_NUMBER}\s*([kmbgt]?)", re.ASCII | re.IGNORECASE)
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_MOST_PARAMETERS = 1e14
_LEAST_BARE, _MOST_BARE_S = 1e5, 1.0
"""Beyond these, a number without a unit is more likely one of another unit."""


def counted(count: int, noun: str) -> str:
    """A number of things in words: `1 node`, `2 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def parse_bandwidth(text: str, where: str = "") -> float:
    """Bits/s of a bandwidth such as `100mbit`, `1Gbps`, `2.5 Gbit/s` or `1e9`. where: names its place in errors.

    Raises:
        UserError: if it does not parse, is not above zero, or is faster than any link; for bytes, and for a small
            number without a unit.
    """
    stripped = text.strip()
    # `bps` in any case but that of Bps, which are bytes.
    found = None if re.search(r"Bps$", stripped) else _BITS.fullmatch(stripped) or _SHORT_BITS.fullmatch(stripped)
    if found is not None:
        value = float(found[1]) * _PREFIXES[found[2].lower()]
    else:
        bare = _BARE.fullmatch(stripped)
        value = float(bare[1]) if bare is not None and float(bare[1]) >= _LEAST_BARE else math.nan
    if 0 < value <= FASTEST:
        return value
    place = f"{where}{': ' if where else ''}{shown(text)}"
    bytes_ = None if found is not None else _BYTES.fullmatch(stripped)
    if bytes_ is not None:
        number, prefix = float(bytes_[1]), bytes_[2].lower()
        raise UserError(
            f"{place} is not a bandwidth in bits/s: a B means bytes; write {8 * number:g}{prefix}bit for bytes, or "
            f"{number:g}{prefix}bit"
        )
    raise UserError(
        f"{place} is not a bandwidth; write a number above 0 with its unit, as in 100mbit, 1Gbps, 2.5 Gbit/s, or "
        f"1e9 for bits/s; at most {FASTEST / 1e12:g}tbit"
    )


def parse_time(text: str, where: str = "") -> float:
    """The seconds of a time such as `20ms`, `0.02s` or `0.02`. where: names its place in errors.

    Raises:
        UserError: if it does not parse, or is over an hour; for a number of 1 or more without a unit.
    """
    stripped = text.strip()
    found, bare = _TIME.fullmatch(stripped), _BARE.fullmatch(stripped)
    if found is not None:
        seconds = float(found[1]) * _TIMES[found[2].lower()]
    else:
        seconds = float(bare[1]) if bare is not None and float(bare[1]) < _MOST_BARE_S else math.inf
    if seconds > LONGEST_S:
        named = f"{where}{': ' if where else ''}{shown(text)}"
        if bare is not None and math.isfinite(float(bare[1])):
            number = f"{float(bare[1]):g}"
            raise UserError(f"{named} has no unit; write {number}ms or {number}s")
        raise UserError(
            f"{named} is not a time of at most an hour; write a number with its unit, as in 20ms or 0.5s"
        )
    return seconds


def parse_period(text: str, where: str = "") -> float:
    """The seconds of a period such as `90s`, `15min`, `6h` or `30d`. where: names its place in errors.

    Raises:
        UserError: if it does not parse, is zero, or is over three centuries.
    """
    found = _PERIOD.fullmatch(text.strip())
    seconds = float(found[1]) * _PERIODS[found[2].lower()] if found is not None else 0.0
    if not 0 < seconds <= _LONGEST_PERIOD_S:
        raise UserError(
            f"{where}{': ' if where else ''}{shown(text)} is not a period; write a number above 0 with its "
            "unit, as in 90s, 15min, 6h or 30d"
        )
    return seconds


def period_text(seconds: float) -> str:
    """`90 s`, `15 min`, `6 h`: the inverse of `parse_period`, in the largest unit that has a whole number."""
    unit, of_unit = max(
        ((unit, of_unit) for unit, of_unit in _PERIODS.items() if seconds % of_unit == 0),
        key=lambda item: item[1],
        default=("s", 1.0),
    )
    return f"{seconds / of_unit:g} {unit}"


def clock(seconds: float) -> str:
    """`1:40`, `2:03:00`: seconds as a clock shows them; no fewer than 0."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def parse_parameters(text: str, where: str = "") -> int:
    """A number of parameters such as `125M`, `7B`, `1e9` or `30,846,720`. where: names its place in errors.

    Raises:
        UserError: if it does not parse, or is not above zero, or is over 100T.
    """
    found = _COUNT.fullmatch(text.strip().replace(",", ""))
    value = float(found[1]) * _SCALES[found[2].lower()] if found else 0.0
    if not 0.5 < value <= _MOST_PARAMETERS:
        raise UserError(f"{where} {shown(text)} is not a number such as 125M, 7B or 30846720; at most 100T")
    return round(value)


def parse_step(text: str, where: str = "") -> float:
    """The seconds of a training step such as `220ms`. where: names its place in errors.

    Raises:
        UserError: as `parse_time`, and for 0 seconds.
    """
    seconds = parse_time(text, where)
    if seconds <= 0:
        raise UserError(f"{where} {shown(text)}: a step takes more than 0 seconds")
    return seconds


def number_or(parse: Callable[[str, str], float], value: float | str, where: str) -> float:
    """`value` of Python: a number in the unit of `parse`, or a text for it.

    Raises:
        UserError: as `parse`; for a number that is negative, not finite or beyond all that exists. A time may be 0.
    """
    if isinstance(value, str):
        return parse(value, where)
    least = "from" if parse is parse_time else "above"
    if not 0 <= value <= FASTEST or (value == 0 and least == "above"):
        raise UserError(f"{where} {value} is no number {least} 0 to {FASTEST:g}")
    return float(value)
