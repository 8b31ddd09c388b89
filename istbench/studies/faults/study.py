"""Run the cells of a suite without faults and under schedules of faults."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from istbench.base.errors import RunFailed
from istbench.base.options.run import RunRequest
from istbench.launch.backends.backend import OncePerLine, Screen
from istbench.launch.backends.here import Here
from istbench.launch.cells.resolve import prepare_cells
from istbench.report.faulty_runs import FaultResults, fault_results, reached, why_not_compared
from istbench.results.load import Run, load_run
from istbench.results.store import RunDirectory
from istbench.studies.faults.injector import FaultyScreen
from istbench.studies.faults.schedule import Point, check_length


class FaultStudy:
    """Runs cells in the results directory `out`; a cell that is done is not run again, unless `again`.

    Attributes:
        problems: a line for each run that failed, or missed its target.
    """

    def __init__(self, backend: Here, out: Path, screen: Screen, *, again: bool) -> None:
        self._backend, self._out, self._screen = backend, out, OncePerLine(screen)
        self._again = again
        self.problems: list[str] = []

    def run(self, requests: Sequence[RunRequest], points: Sequence[Point]) -> FaultResults:
        """Run `requests` without faults, then with each of `points`.

        Raises:
            UserError: if a request or a schedule cannot run.
            RunFailed: if no run without faults reached its target, or none with faults began.
        """
        fitted = [self._backend.fit(request) for request in requests]
        free = [(request, run) for request in fitted if (run := self._fault_free(request)) is not None]
        if free:
            check_length(points, max(run.curve.seconds[-1] for _, run in free))
        faulty, total = list[Run](), len(free) * len(points)
        for number, (point, (request, own)) in enumerate(itertools.product(points, free), start=1):
            run = self._faulty(request, own, point)
            if run is None:
                continue
            faulty.append(run)
            found = fault_results([own], [run])
            one = found.rows[-1].runs[-1] if found else None
            ended = "" if one is None else one.failure or f"{one.times:.2f} times the seconds without faults"
            hits = 0 if one is None else len(one.hits)
            self._screen.note(f"[{number}/{total}] {run.header.cell}, {point.text}: {hits} faults hit it, {ended}")
        results = fault_results([run for _, run in free], faulty)
        if results is None:
            raise RunFailed(f"no run without faults reached its target: {'; '.join(self.problems)}")
        return results

    def _fault_free(self, request: RunRequest) -> Run | None:
        """The run of `request` without faults; None if it failed or missed its target, with a problem."""
        run, failure = self._run(request, self._screen)
        if run is not None and not failure:
            failure = why_not_compared(run)
        if run is None or failure:
            self.problems.append(f"{request.method} without faults: {failure}")
            return None
        return run

    def _faulty(self, request: RunRequest, own: Run, point: Point) -> Run | None:
        """The run of `request` with the faults of `point`; None if it did not begin. `own` has no faults."""
        faults = point.faults(own.curve.seconds[-1], request.seed)
        screen = FaultyScreen(self._screen, faults, own.curve, self._backend.lab)
        run, failure = self._run(msgspec.structs.replace(request, faults=point.text), screen)
        if run is not None and not failure and not reached(run):
            failure = "it misses its target"
        if failure:
            self.problems.append(f"{request.method}, {point.text}: {failure}")
        return run

    def _run(self, request: RunRequest, screen: Screen) -> tuple[Run | None, str]:
        """The run of `request`, and the error that ended it.

        A run that was interrupted starts from the beginning: its wall clock has a hole.
        """
        (cell,) = prepare_cells([request], screen.preparing)
        directory = RunDirectory.of(self._out, cell.cell)
        done = directory.exists() and directory.header().status == "done"
        if done and not self._again and (request.faults is None or directory.faults.exists()):
            return load_run(directory), ""  # faults would begin before a backend sees that it is done
        (outcome,) = self._backend.run([request], self._out, True, screen)
        if outcome.failure is not None:
            begun = outcome.run is not None and outcome.run.exists()
            return (load_run(directory) if begun else None), str(outcome.failure)
        return load_run(outcome.finished()), ""
