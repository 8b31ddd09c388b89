"""Run the cells of a suite without faults and under schedules of faults, and split their wall seconds."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from istbench.base.errors import RunFailed
from istbench.base.options.run import RunRequest
from istbench.cluster.faults import Faults, with_faults
from istbench.launch.backends.backend import OncePerLine, Screen
from istbench.launch.backends.here import Here
from istbench.launch.cells.resolve import prepare_cells
from istbench.results.load import Run, load_run
from istbench.results.store import RunDirectory
from istbench.studies.faults.injector import FaultyScreen, Pace
from istbench.studies.faults.record import FaultRecord, Hit, read_record
from istbench.studies.faults.schedule import ENDING, Point, check_length
from istbench.studies.faults.wall import Wall, wall_of


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
    """The runs of a method on some nodes with one schedule, a run for each seed; `point` is None without faults."""

    label: str
    nodes: int
    point: Point | None
    runs: tuple[FaultyRun, ...]

    @property
    def simulated(self) -> float | None:
        """The mean of the simulated factors of its runs; None without one."""
        found = [own.simulated for own in self.runs if own.simulated is not None]
        return statistics.mean(found) if self.point is not None and found else None


@dataclass(frozen=True, kw_only=True)
class FaultResults:
    """The rows of a suite. first: a run without faults. problems: a line each."""

    rows: tuple[FaultRow, ...]
    first: Run
    problems: tuple[str, ...]

    @property
    def elastic(self) -> bool:
        """Whether runs train on fewer nodes after a loss."""
        return self.first.header.config.elastic is not None


@dataclass(frozen=True, kw_only=True)
class FaultFree:
    """A run without faults. request: of its cell."""

    request: RunRequest
    run: Run
    wall: Wall

    @property
    def train_s(self) -> float:
        """Its train seconds."""
        return self.run.curve.seconds[-1]


class FaultStudy:
    """Runs cells in the results directory `out`; a cell that is done is not run again, unless `again`."""

    def __init__(self, backend: Here, out: Path, screen: Screen, *, again: bool) -> None:
        self._backend, self._out, self._screen = backend, out, OncePerLine(screen)
        self._again = again
        self._problems: list[str] = []

    def run(self, requests: Sequence[RunRequest], points: Sequence[Point]) -> FaultResults:
        """Run `requests` without faults, then with each of `points`.

        Raises:
            UserError: if a request or a schedule cannot run.
            RunFailed: if no run without faults reached its target.
        """
        fitted = [self._backend.fit(request) for request in requests]
        free = [own for request in fitted if (own := self._fault_free(request)) is not None]
        if not free:
            raise RunFailed(f"no run without faults reached its target: {'; '.join(self._problems)}")
        check_length(points, max(own.train_s for own in free))
        found: dict[tuple[str, int, Point | None], list[FaultyRun]] = {}
        for own in free:
            undisturbed = FaultyRun(
                cell=own.run.header.cell, seed=own.request.seed, hits=(), wall=own.wall, fault_free=own.wall
            )
            found.setdefault(_row(own, None), []).append(undisturbed)
        total = len(free) * len(points)
        for number, (point, own) in enumerate(((point, own) for point in points for own in free), start=1):
            faulty = self._faulty(own, point)
            found.setdefault(_row(own, point), []).append(faulty)
            ended = faulty.failure or f"{faulty.times:.2f} times the seconds without faults"
            self._screen.note(
                f"[{number}/{total}] {faulty.cell}, {point.text}: {len(faulty.hits)} faults hit it, {ended}"
            )
        order = {_row(own, None)[:2]: None for own in free}
        rows = [
            FaultRow(label=key[0], nodes=key[1], point=key[2], runs=tuple(found[key]))
            for label in order
            for key in found
            if key[:2] == label
        ]
        return FaultResults(rows=tuple(rows), first=free[0].run, problems=tuple(self._problems))

    def _fault_free(self, request: RunRequest) -> FaultFree | None:
        """The run of `request` without faults; None if it failed or missed its target, with a problem."""
        run, failure = self._run(request, self._screen)
        if run is not None and not _reached(run):
            failure = f"it misses its target of {request.target}; give a level that it reaches, or more steps"
        if run is None or failure:
            self._problems.append(f"{request.method} without faults: {failure}")
            return None
        return FaultFree(request=request, run=run, wall=_wall(run, began=0.0, fault_free_s=run.curve.seconds[-1]))

    def _faulty(self, own: FaultFree, point: Point) -> FaultyRun:
        request = msgspec.structs.replace(own.request, faults=point.text)
        faults = point.faults(own.train_s, request.seed)
        screen = FaultyScreen(self._screen, faults, Pace.of(own.run.curve), self._backend.lab)
        run, failure = self._run(request, screen)
        record = FaultRecord(began=0.0, hits=())
        if run is not None and run.directory.faults.exists():
            record = read_record(run.directory.faults)
        if run is not None and not failure and not _reached(run):
            failure = "it misses its target"
        found = FaultyRun(
            cell=own.run.header.cell if run is None else run.header.cell,
            seed=request.seed,
            hits=record.hits,
            wall=None,
            fault_free=own.wall,
            failure=failure,
        )
        if run is None or failure:
            self._problems.append(f"{request.method}, {point.text}: {failure}")
            return found
        wall = _wall(run, began=record.began, fault_free_s=own.train_s)
        restarts = len(run.restarts)
        restart_s = (wall.noticing_s + wall.restarting_s) / restarts if restarts else None
        found = dataclasses.replace(found, wall=wall, restart_s=restart_s)
        if own.request.elastic is not None:
            return found
        return dataclasses.replace(found, simulated=simulated_times(own, found))

    def _run(self, request: RunRequest, screen: Screen) -> tuple[Run | None, str]:
        """The run of `request`, and the error that ended it.

        A run that was interrupted starts from the beginning: its wall clock has a hole.
        """
        (cell,) = prepare_cells([request], screen.preparing)
        directory = RunDirectory.of(self._out, cell.name)
        done = directory.exists() and directory.header().status == "done"
        done = done and (request.faults is None or directory.faults.exists())
        (outcome,) = self._backend.run([request], self._out, self._again or not done, screen)
        if outcome.failure is not None:
            return (None if outcome.run is None else load_run(outcome.run)), str(outcome.failure)
        return load_run(outcome.finished()), ""


def simulated_times(own: FaultFree, faulty: FaultyRun) -> float:
    """The seconds of `own` with faults over those without, on average, as `istbench replay --mtbf` simulates them.

    The rate of faults and the seconds of a restart are those of `faulty`, of the faults that end all nodes.
    """
    if not faulty.ending or faulty.restart_s is None or faulty.wall is None:
        return 1.0
    every = own.run.header.config.checkpoint_every_s
    checkpoint_s = 0.0 if every == "auto" else every / _dilation(own.run)
    mtbf_s = (own.train_s + faulty.wall.lost_s) / faulty.ending
    faults = Faults(mtbf_s=mtbf_s, restart_s=faulty.restart_s, checkpoint_s=checkpoint_s)
    times = with_faults(own.run.curve.seconds, own.train_s, 1, faults, seed=own.request.seed)
    return 1 + float((times.lost_s + times.restarting_s).mean()) / own.wall.to_target_s


def _row(own: FaultFree, point: Point | None) -> tuple[str, int, Point | None]:
    return own.run.header.method_label, own.request.nodes, point


def _reached(run: Run) -> bool:
    target = run.header.config.target
    return target is None or run.reached(target) is not None


def _dilation(run: Run) -> float:
    lab = run.header.config.lab
    return lab.dilation if lab else 1.0


def _wall(run: Run, *, began: float, fault_free_s: float) -> Wall:
    return wall_of(run.directory.events(), run.header.own_metric, began, fault_free_s, _dilation(run))
