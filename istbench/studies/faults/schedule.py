"""Schedules of faults: their kinds, the text of a list such as `kill@12s, stop:5s@20s`, and random lists."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from istbench.base.decode import convert, read_text
from istbench.base.errors import UserError, shown, unknown_name
from istbench.base.units import parse_period, period_text
from istbench.results.fault_record import KINDS, MOST_FAULTS, OF_LINKS, Kind

LASTING: dict[Kind, float] = {"stop": 2.0, "down": 2.0, "slow": 5.0, "full": 5.0}
"""Kinds that last, and their seconds if the schedule names none."""
RESTARTS = 100
_RANDOM = "poisson:"
_LONGEST = 20  # runs without faults that a random list covers
_RATES = Annotated[tuple[Annotated[float, Meta(gt=0, le=100)], ...], Meta(min_length=1, max_length=20)]
_FORM = "write kill@12s,stop:5s@20s, poisson:1,2,4, poisson:20s, or the name of a file with a list"


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
        rate: faults in the run time of a cell without faults, on average. every_s: mean train seconds between two
            faults, of all cells. Both are None for a list.
        types: of a random list, each in turn in a random order. listed: the faults of a list.
        seed: of moments, kinds and victims.
    """

    rate: float | None = None
    every_s: float | None = None
    types: tuple[FaultType, ...] = ()
    listed: tuple[tuple[FaultType, float], ...] = ()
    seed: int = 0

    @property
    def text(self) -> str:
        """The schedule in words, as runs record it."""
        if not self.types:
            return f"{', '.join(f'{own}@{_seconds_text(at_s)}' for own, at_s in self.listed)}, seed {self.seed}"
        return f"{_RANDOM}{self.short} of {', '.join(map(str, self.types))}, seed {self.seed}"

    @property
    def short(self) -> str:
        """The rate, the mean time between faults, or `list`."""
        if self.every_s is not None:
            return _seconds_text(self.every_s)
        return "list" if self.rate is None else f"{self.rate:g}"

    def in_run(self, run_s: float) -> float:
        """Faults in a run that takes `run_s` seconds without faults, on average."""
        if self.every_s is not None:
            return run_s / self.every_s
        return self.rate if self.rate is not None else sum(at_s < run_s for _, at_s in self.listed)

    def faults(self, run_s: float, seed: int) -> list[PlannedFault]:
        """The faults of a run with that `seed`, in order, which takes `run_s` seconds without faults."""
        random = np.random.default_rng([self.seed, seed])
        if not self.types:
            listed = sorted(self.listed, key=lambda item: item[1])
            return [PlannedFault(type=own, at_s=at_s, place=random.random()) for own, at_s in listed]
        found, at_s, every_s = list[PlannedFault](), 0.0, run_s / self.in_run(run_s)
        while (at_s := at_s + random.exponential(every_s)) < _LONGEST * run_s and len(found) < MOST_FAULTS:
            if not (turn := len(found) % len(self.types)):
                order = random.permutation(len(self.types))
            found.append(PlannedFault(type=self.types[order[turn]], at_s=at_s, place=random.random()))
        return found


def parse_schedule(text: str, types: Sequence[FaultType], seed: int, where: str) -> list[Point]:
    """The schedules in `text`: one for each part of `poisson:1,2,4` or `poisson:20s`, a list, or a file with one.

    Args:
        types: of random lists. where: names the place of the text in errors.

    Raises:
        UserError: if it is none, or for an unknown fault, or a number out of bounds.
    """
    if text.startswith(_RANDOM):
        listed = [part.strip() for part in text.removeprefix(_RANDOM).split(",")]
        if all(part[-1:].isalpha() for part in listed):
            periods = sorted({parse_period(part, f"{where} {_RANDOM}") for part in listed}, reverse=True)
            return [Point(every_s=period, types=tuple(types), seed=seed) for period in periods]
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
    return tuple(_type(text.strip(), where) for text in texts)


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


def types_here(types: Sequence[FaultType], *, in_lab: bool, several: bool, disk: bool) -> tuple[FaultType, ...]:
    """Those of `types` that are possible: of links in a lab, of hosts with `several` nodes, of a `disk` to fill."""
    possible = {**dict.fromkeys(OF_LINKS, in_lab), "host": several, "full": disk}
    return tuple(own for own in types if possible.get(own.kind, True))


def _fault(text: str, where: str) -> tuple[FaultType, float]:
    own, _, at = text.partition("@")
    if not at:
        raise UserError(f"{where}: {shown(text)} has no time; {_FORM}")
    return _type(own.strip(), where), parse_period(at, f"{where} {text}")


def _type(text: str, where: str) -> FaultType:
    name, colon, seconds = text.partition(":")
    kind = next((known for known in KINDS if known == name), None)
    if kind is None:
        raise unknown_name("fault", name, KINDS, f"in {where}")
    if kind not in LASTING:
        if colon:
            raise UserError(f"{where}: {kind} does not last; write {kind}")
        return FaultType(kind=kind)
    found = FaultType(kind=kind, seconds=LASTING[kind])
    return dataclasses.replace(found, seconds=parse_period(seconds, f"{where} {text}")) if colon else found


def _seconds_text(seconds: float) -> str:
    return period_text(seconds).replace(" ", "")
