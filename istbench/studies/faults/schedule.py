"""Schedules of faults: their kinds, the text of a list such as `kill@12s, stop:5s@20s`, and random lists."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from msgspec import Meta

from istbench.base.decode import convert, read_text
from istbench.base.errors import UserError, shown, unknown_name
from istbench.base.units import parse_period, period_text

Kind = Literal["kill", "host", "stop", "down", "slow", "full", "damage"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LASTING: dict[Kind, float] = {"stop": 2.0, "down": 2.0, "slow": 5.0, "full": 5.0}
"""Kinds that last, and their seconds if the schedule names none."""
OF_LINKS: tuple[Kind, ...] = ("down", "slow")
ENDING: tuple[Kind, ...] = ("kill", "host", "damage")
"""Kinds after which all nodes start again."""
MOST_FAULTS = 1000
_RANDOM = "poisson:"
_LONGEST = 20  # runs without faults that a random list covers
_RATES = Annotated[tuple[Annotated[float, Meta(gt=0, le=100)], ...], Meta(min_length=1, max_length=20)]
_FORM = "write kill@12s, stop:5s@20s, poisson:1,2,4, or the name of a file with such a list"


@dataclass(frozen=True, kw_only=True)
class FaultType:
    """A kind of fault, with the seconds that it lasts; 0 for one that does not last."""

    kind: Kind
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}:{_seconds_text(self.seconds)}" if self.seconds else self.kind


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """A fault of a schedule.

    Attributes:
        at_s: train seconds before it, of steps that count and of steps that were lost.
        place: the share of the ranks below the victim: 0 hits rank 0, and 0.99 the last one.
    """

    type: FaultType
    at_s: float
    place: float

    def victim(self, nodes: int) -> int:
        """The rank that it hits in a run on `nodes`."""
        return min(nodes - 1, int(self.place * nodes))


@dataclass(frozen=True, kw_only=True)
class Point:
    """A schedule for all runs of a suite.

    Attributes:
        rate: faults in the run time, on average; None for a list. types: of a random list, each as likely.
        listed: the faults of a list. seed: of moments, kinds and victims.
    """

    rate: float | None = None
    types: tuple[FaultType, ...] = ()
    listed: tuple[tuple[FaultType, float], ...] = ()
    seed: int = 0

    @property
    def text(self) -> str:
        """The schedule in words, as runs record it."""
        if self.rate is not None:
            return f"{_RANDOM}{self.rate:g} of {', '.join(map(str, self.types))}, seed {self.seed}"
        return f"{', '.join(f'{own}@{_seconds_text(at_s)}' for own, at_s in self.listed)}, seed {self.seed}"

    def faults(self, run_s: float, seed: int) -> list[PlannedFault]:
        """The faults of the runs with that `seed`, in order; `run_s` is the run time that the rate refers to."""
        random = np.random.default_rng([self.seed, seed])
        if self.rate is None:
            listed = sorted(self.listed, key=lambda item: item[1])
            return [PlannedFault(type=own, at_s=at_s, place=random.random()) for own, at_s in listed]
        found, at = list[PlannedFault](), 0.0
        while (at := at + random.exponential()) < self.rate * _LONGEST and len(found) < MOST_FAULTS:
            own = self.types[int(random.integers(len(self.types)))]
            found.append(PlannedFault(type=own, at_s=at / self.rate * run_s, place=random.random()))
        return found

    def ending(self, run_s: float) -> float:
        """Faults after which all nodes start again, in `run_s` seconds on average."""
        if self.rate is None:
            return sum(own.kind in ENDING and at_s < run_s for own, at_s in self.listed)
        return self.rate * sum(own.kind in ENDING for own in self.types) / len(self.types)


def parse_schedule(text: str, types: Sequence[FaultType], seed: int, where: str) -> list[Point]:
    """The schedules in `text`: one for each rate of `poisson:1,2,4`, or a list, or a file with a list.

    Args:
        types: of random lists. where: names the place of the text in errors.

    Raises:
        UserError: if it is none, or for an unknown fault, or a number out of bounds.
    """
    if text.startswith(_RANDOM):
        listed = [part.strip() for part in text.removeprefix(_RANDOM).split(",")]
        rates = convert(listed, _RATES, lambda _: f"{where} {_RANDOM}", text=True)
        return [Point(rate=rate, types=tuple(types), seed=seed) for rate in sorted(set(rates))]
    if "@" not in text:
        path = Path(text)
        if not path.is_file():
            raise UserError(f"{where} {shown(text)} is no schedule, and no file; {_FORM}")
        lines = (line.partition("#")[0] for line in read_text(path, "a list of faults").splitlines())
        text, where = ",".join(lines), str(path)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not 0 < len(parts) <= MOST_FAULTS:
        raise UserError(f"{where} has {len(parts):,} faults; name 1 to {MOST_FAULTS:,}")
    return [Point(listed=tuple(_fault(part, where) for part in parts), seed=seed)]


def parse_types(texts: Collection[str], where: str) -> tuple[FaultType, ...]:
    """The kinds of faults in `texts`, such as `kill` and `stop:5s`.

    Raises:
        UserError: for an unknown fault, and seconds that are none.
    """
    return tuple(dict.fromkeys(_type(text.strip(), where) for text in texts))


def check_length(points: Sequence[Point], longest_s: float) -> None:
    """Refuse a list with a fault after the longest run without faults.

    Raises:
        UserError: naming the fault.
    """
    for point in points:
        for own, at_s in point.listed:
            if at_s >= longest_s:
                raise UserError(
                    f"--schedule: {own}@{_seconds_text(at_s)} comes after the end of the longest run without "
                    f"faults ({longest_s:.3g} train seconds); name earlier seconds, or make the runs longer"
                )


def types_here(types: Sequence[FaultType], *, in_lab: bool, several: bool) -> tuple[FaultType, ...]:
    """Those of `types` that are possible: faults of links in a lab only, of hosts if one has `several` nodes."""
    return tuple(own for own in types if (in_lab or own.kind not in OF_LINKS) and (several or own.kind != "host"))


def _fault(text: str, where: str) -> tuple[FaultType, float]:
    own, _, at = text.partition("@")
    if not at:
        raise UserError(f"{where}: {shown(text)} has no time; {_FORM}")
    return _type(own.strip(), where), parse_period(at, f"{where} {text}")


def _type(text: str, where: str) -> FaultType:
    name, colon, seconds = text.partition(":")
    kind = next((known for known in KINDS if known == name), None)
    if kind is None:
        raise unknown_name(f"fault in {where}:", name, KINDS)
    if kind not in LASTING:
        if colon:
            raise UserError(f"{where}: {kind} does not last; write {kind}")
        return FaultType(kind=kind)
    found = FaultType(kind=kind, seconds=LASTING[kind])
    return dataclasses.replace(found, seconds=parse_period(seconds, f"{where} {text}")) if colon else found


def _seconds_text(seconds: float) -> str:
    return period_text(seconds).replace(" ", "")
