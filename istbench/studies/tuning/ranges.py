"""The ranges in which the options of a method are tuned: declared beside the options, or given by the user."""

import dataclasses
import typing
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from istbench.base.decode import literal_choices, type_at
from istbench.base.errors import UserError, shown, unknown_name
from istbench.base.options.options import option_text, parse_option
from istbench.base.options.tunable import Scale, Tunable

_FIRST = "lr"
_LOG_FROM = 10.0  # a range whose ends have this ratio is given in orders of magnitude
_DIGITS = 3
_FORM = "write NAME=LOW:HIGH, such as lr=0.001:1, or NAME=LOW:HIGH:linear"


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range of option `name` from `low` to `high`, both included; `whole` numbers only, or any."""

    name: str
    low: float
    high: float
    scale: Scale
    whole: bool

    def at(self, place: float) -> float | int:
        """The value at `place`, from 0 (`low`) to 1 (`high`), with three significant digits."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        value = low * (high / low) ** place if self.scale == "log" else low + place * (high - low)
        if self.whole:
            return min(max(round(value), int(self.low)), int(self.high))
        return min(max(_rounded(value), self.low), self.high)

    def __str__(self) -> str:
        kind = "whole, " if self.whole else ""
        return f"{self.name} {self.low:g} to {self.high:g} ({kind}{self.scale})"


@dataclass(frozen=True, kw_only=True)
class GivenRange:
    """A range as the user typed it, before it is known which methods have the option."""

    name: str
    low: str
    high: str
    scale: Scale | None = None

    @classmethod
    def parse(cls, text: str) -> "GivenRange":
        """The range of a text such as `lr=0.001:1`.

        Raises:
            UserError: for a text of another form.
        """
        name, equals, ends = (part.strip() for part in text.partition("="))
        parts = [part.strip() for part in ends.split(":")]
        scales = literal_choices(Scale)
        if not (name and equals) or len(parts) not in (2, 3) or not all(parts):
            raise UserError(f"--range {shown(text)}: {_FORM}")
        if len(parts) == 3 and parts[2] not in scales:
            raise UserError(f"--range {shown(text)}: {shown(parts[2])} is no scale; use one of {', '.join(scales)}")
        scale = typing.cast(Scale, parts[2]) if len(parts) == 3 else None
        return cls(name=name, low=parts[0], high=parts[1], scale=scale)


def given_ranges(texts: Iterable[str]) -> dict[str, GivenRange]:
    """The ranges of `--range`, by option.

    Raises:
        UserError: as `GivenRange.parse` does, and for an option with two ranges.
    """
    found: dict[str, GivenRange] = {}
    for given in map(GivenRange.parse, texts):
        if given.name in found:
            raise UserError(f"--range {shown(given.name)} is given twice; leave one out")
        found[given.name] = given
    return found


def ranges_of(
    method: str, defaults: Any, given: Mapping[str, GivenRange], *, left_out: Container[str] = (), by_seconds: bool
) -> list[Range]:
    """The ranges of the options of `method`, the learning rate first, then in the order of the options.

    Args:
        defaults: its options, with the defaults of the workload. given: the user's ranges; those of other methods'
            options are ignored.
        left_out: options that keep their value. by_seconds: whether seconds judge the trials.

    Raises:
        UserError: for a range that has no values of the option.
    """
    kinds = typing.get_type_hints(type(defaults), include_extras=True)
    found = []
    for field in dataclasses.fields(defaults):
        tunable = field.metadata.get("tune")
        if field.name in given:
            found.append(_typed(method, given[field.name], kinds[field.name], tunable))
        elif tunable is not None and field.name not in left_out and (by_seconds or not tunable.costs):
            found.append(_declared(field.name, tunable, kinds[field.name], getattr(defaults, field.name)))
    return sorted(found, key=lambda own: own.name != _FIRST)


def check_known(given: Iterable[str], known: Mapping[str, Collection[str]]) -> None:
    """Refuse a `given` range of an option that no method has. known: the options of each method.

    Raises:
        UserError: with the nearest name.
    """
    every = {name for names in known.values() for name in names}
    for name in given:
        if name not in every:
            raise unknown_name("option", name, every, f"of {', '.join(known)} in --range")


def _declared(name: str, tunable: Tunable, kind: Any, default: Any) -> Range:
    low, high = tunable.low, tunable.high
    whole = _is_whole(kind)
    if tunable.of_default:
        low, high = _rounded(low * default), _rounded(high * default)
    if whole:
        least = 1 if tunable.of_default or tunable.scale == "log" else 0
        low, high = max(least, round(low)), max(least, round(high))
    return Range(name=name, low=low, high=high, scale=tunable.scale, whole=whole)


def _typed(method: str, given: GivenRange, kind: Any, tunable: Tunable | None) -> Range:
    where = f"--range {given.name} of method {method!r}"
    if type_at(kind, ()) not in (int, float):
        raise UserError(f"{where}: the option is no number; choose a value with --set {given.name}=VALUE")
    low, high = (parse_option(end, kind, where) for end in (given.low, given.high))
    if low >= high:
        raise UserError(f"{where}: {option_text(low)} is not below {option_text(high)}; {_FORM}")
    scale = given.scale or (
        tunable.scale if tunable else "log" if low > 0 and high / low >= _LOG_FROM else "linear"
    )
    if scale == "log" and low <= 0:
        raise UserError(f"{where}: a log scale starts above 0, not at {option_text(low)}; add :linear")
    return Range(name=given.name, low=low, high=high, scale=scale, whole=_is_whole(kind))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _is_whole(kind: Any) -> bool:
    return bool(type_at(kind, ()) is int)
