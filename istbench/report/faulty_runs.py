"""Runs that `istbench faults` disturbed, beside the same runs without faults: the figures of tables and plots."""

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import msgspec

from istbench.base.errors import UserError
from istbench.base.units import parse_period
from istbench.cluster.faults import Faults, with_faults
from istbench.results.fault_record import ENDING, Hit, Wall, read_record, wall_of
from istbench.results.load import Run
from istbench.results.stats import SeedMedian, finite, seed_median

_SCHEDULE = re.compile(r"(?:poisson:(?P<short>\S+) of )?(?P<kinds>.*), seed \d+")


@dataclass(frozen=True, kw_only=True)
class FaultSchedule:
    """The schedule of a run, from the text in its config.

    Attributes:
        short: the rate, the mean time between faults, or `list`. kinds: of its faults.
        rate: faults in the run time without faults, on average. every_s: mean train seconds between two faults.
            Both are None for a list.
    """

    text: str
    short: str
    kinds: tuple[str, ...]
    rate: float | None = None
    every_s: float | None = None

    @classmethod
    def of(cls, text: str) -> "FaultSchedule":
        """The schedule in `text`, for example `poisson:2 of kill, stop:2s, seed 0`; any other text is a list."""
        found = _SCHEDULE.fullmatch(text)
        short, listed = ("", "") if found is None else (found["short"] or "", found["kinds"])
        rate = every_s = None
        with suppress(UserError, ValueError):  # a header may hold any words
            if short[-1:].isalpha():
                every_s = parse_period(short)
            else:
                rate = finite(float(short))
        known = short if rate is not None or every_s is not None else "list"
        kinds = tuple(dict.fromkeys(part.partition("@")[0] for part in listed.split(", ") if part))
        return cls(text=text, short=known, kinds=kinds, rate=rate, every_s=every_s)


@dataclass(frozen=True, kw_only=True)
class FaultyRun:
    """A run with faults.

    Attributes:
        cell: its name. seed: of the cell. hits: the faults that hit it.
        wall: None if it did not reach its target. fault_free: that of the run without faults.
        restart_s: mean seconds from the last sign of life before a loss until all nodes trained on; None without.
        simulated: the same factor as `times` by `cluster.faults`; None if it missed its target, or is elastic.
        failure: the error that ended it; empty without one.
    """

    cell: str
    seed: int
    hits: tuple[Hit, ...]
    wall: Wall | None
    fault_free: Wall
    restart_s: float | None = None
    simulated: float | None = None
    failure: str = ""

    @property
    def times(self) -> float:
        """Its seconds to the target over those without faults; infinity for a miss."""
        return math.inf if self.wall is None else self.wall.to_target_s / self.fault_free.to_target_s

    @property
    def ending(self) -> int:
        """The faults after which all nodes started again."""
        return sum(hit.kind in ENDING for hit in self.hits)


@dataclass(frozen=True, kw_only=True)
class FaultRow:
    """The runs of a method on some nodes with one schedule, a run for each seed; `schedule` is None without."""

    label: str
    method: str
    nodes: int
    schedule: FaultSchedule | None
    runs: tuple[FaultyRun, ...]

    @property
    def times(self) -> SeedMedian:
        """Its seconds to the target over those without faults, over seeds."""
        return seed_median([own.times for own in self.runs])

    @property
    def reached(self) -> int:
        return sum(own.wall is not None for own in self.runs)

    @property
    def short(self) -> str:
        """The rate of its faults, as on an axis."""
        return "0" if self.schedule is None else self.schedule.short

    @property
    def simulated(self) -> float | None:
        """The mean of the simulated factors of its runs; None without one."""
        found = [own.simulated for own in self.runs if own.simulated is not None]
        return statistics.mean(found) if self.schedule is not None and found else None


@dataclass(frozen=True, kw_only=True)
class FaultResults:
    """The rows of comparable runs, those of a method together. first: a run without faults."""

    rows: tuple[FaultRow, ...]
    first: Run

    @property
    def elastic(self) -> bool:
        """Whether runs train on fewer nodes after a loss."""
        return self.first.header.config.elastic is not None


def fault_results(
    free: Sequence[Run], faulty: Sequence[Run], label: Callable[[Run], str] = lambda run: run.header.method_label
) -> FaultResults | None:
    """The rows of the runs `free` of faults to which others compare, each with its `faulty` runs.

    label: of the row of a run in `free`. None without a faulty run of one of them.
    """
    found: dict[tuple[str, str, int], dict[FaultSchedule | None, list[FaultyRun]]] = {}
    firsts = list[Run]()
    for own in free:
        others = [run for run in faulty if _without_faults(run) == own.header.cell]
        if not others or why_not_compared(own):
            continue
        firsts.append(own)
        header, wall = own.header, _wall(own, began=0.0, fault_free_s=own.curve.seconds[-1])
        rows = found.setdefault((label(own), header.method, header.nodes), {})
        undisturbed = FaultyRun(cell=header.cell, seed=header.seed, hits=(), wall=wall, fault_free=wall)
        rows.setdefault(None, []).append(undisturbed)
        for run in others:
            rows.setdefault(FaultSchedule.of(run.header.config.faults or ""), []).append(_faulty(own, wall, run))
    if not firsts:
        return None
    return FaultResults(
        rows=tuple(
            FaultRow(label=label, method=method, nodes=nodes, schedule=schedule, runs=tuple(runs))
            for (label, method, nodes), rows in found.items()
            for schedule, runs in sorted(rows.items(), key=lambda item: _order(item[0]))
        ),
        first=firsts[0],
    )


def _order(schedule: FaultSchedule | None) -> tuple[float, float]:
    """No faults first, then few; lists last."""
    if schedule is None:
        return 0.0, -math.inf
    return math.inf if schedule.rate is None else schedule.rate, -(schedule.every_s or 0.0)


def reached(run: Run) -> bool:
    """Whether `run` reached the target at which it stops, or its end without one."""
    target, own = run.header.config.target, run.header.own_metric
    return run.done and (target is None or run.curve.on_metric(own).reached(target) is not None)


def why_not_compared(free: Run) -> str:
    """The reason why no run with faults compares to `free`, a run without them, and the way out; else empty."""
    target = free.header.config.target
    if not reached(free):
        return f"it misses its target of {target}; give a level that it reaches, or more steps"
    if not free.curve.seconds[-1]:
        return f"it is at its target of {target} before it trains; give a harder one"
    if free.restarts or free.resizes:
        return "it lost a worker itself; run it again with --again"
    return ""


def _without_faults(run: Run) -> str:
    header = run.header
    return msgspec.structs.replace(header.config, faults=None).cell(header.data_source.fingerprint)


def _faulty(own: Run, fault_free: Wall, run: Run) -> FaultyRun:
    """The figures of `run`, of which `own` is the run without faults."""
    header = run.header
    found = FaultyRun(cell=header.cell, seed=header.seed, hits=(), wall=None, fault_free=fault_free)
    try:
        record = read_record(run.directory.faults)
    except UserError as error:  # nobody knows when it began
        return dataclasses.replace(found, failure=str(error))
    found = dataclasses.replace(found, hits=record.hits)
    if not reached(run):
        return dataclasses.replace(found, failure=header.error or "it misses its target")
    wall = _wall(run, began=record.began, fault_free_s=own.curve.seconds[-1])
    restarts = len(run.restarts)
    restart_s = (wall.noticing_s + wall.restarting_s) / restarts if restarts else None
    found = dataclasses.replace(found, wall=wall, restart_s=restart_s)
    if header.config.elastic is not None:
        return found
    try:
        return dataclasses.replace(found, simulated=_simulated_times(own, found, header.config.checkpoint_every_s))
    except UserError:  # too many faults to simulate
        return found


def _simulated_times(own: Run, faulty: FaultyRun, every: float | Literal["auto"]) -> float:
    """The seconds of `own` with faults over those without, on average, as `istbench replay --mtbf` simulates them.

    The rate of faults and the seconds of a restart are those of `faulty`, of the faults that end all nodes. every:
    seconds between its checkpoints.
    """
    if not faulty.ending or faulty.restart_s is None or faulty.wall is None:
        return 1.0
    train_s = own.curve.seconds[-1]
    checkpoint_s = 0.0 if every == "auto" else every / _dilation(own)
    mtbf_s = (train_s + faulty.wall.lost_s) / faulty.ending
    faults = Faults(mtbf_s=mtbf_s, restart_s=faulty.restart_s, checkpoint_s=checkpoint_s)
    times = with_faults(own.curve.seconds, train_s, 1, faults, seed=own.header.seed)
    return 1 + float((times.lost_s + times.restarting_s).mean()) / faulty.fault_free.to_target_s


def _dilation(run: Run) -> float:
    lab = run.header.config.lab
    return lab.dilation if lab else 1.0


def _wall(run: Run, *, began: float, fault_free_s: float) -> Wall:
    return wall_of(run.directory.events(), run.header.own_metric, began, fault_free_s, _dilation(run))
