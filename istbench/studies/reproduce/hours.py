"""Hours that the cells of a reproduction take: estimated before, and corrected while they run."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.launch.backends.backend import Outcome
from istbench.report.tables.numbers import number
from istbench.results.load import Run
from istbench.studies.reproduce.cells import Overrides, is_run_of, run_of
from istbench.studies.reproduce.paper import Cells, Extent


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A cell. done: whether the results directory has it. hours: an estimate on two cores; None if unknown."""

    request: RunRequest
    done: bool
    hours: float | None


def forecast(cells: Cells, overrides: Overrides, runs: Sequence[Run]) -> list[Forecast]:
    """The cells of `cells` with their hours.

    A cell takes as long as its other seeds took, else its method's share of the estimate of `cells`. Runs with
    `--data` are not those of a command without it.
    """
    requests = overrides.requests(cells)
    given = any(request.data is not None for request in requests)
    done = [run for run in runs if run.done and bool(run.header.typed_data) == given]
    hours = cells.hours_with_data if given and cells.suite.run.get("steps") is None else cells.hours
    weights = [cells.weights.get(request.method, 1.0) for request in requests]
    whole = sum(weights) / len({request.seed for request in requests})  # of one seed
    found = []
    for request, weight in zip(requests, weights, strict=True):
        alike = [
            run.header.result.wall_s / 3600
            for run in done
            if run.header.result is not None
            and is_run_of(msgspec.structs.replace(request, seed=run.header.seed), run.header)
        ]
        own = sum(alike) / len(alike) if alike else None if hours is None else hours * weight / whole
        found.append(Forecast(request=request, done=run_of(request, done) is not None, hours=own))
    return found


def forecasts(extents: Iterable[Extent], overrides: Overrides, runs: Sequence[Run]) -> list[Forecast]:
    """The cells of `extents`, each once."""
    found: list[Forecast] = []
    for extent in extents:
        for cells in extent.cells:
            found += [one for one in forecast(cells, overrides, runs) if one not in found]
    return found


def hours_left(ended: Sequence[float | None], waiting: Sequence[float | None], elapsed: float) -> float | None:
    """Hours of the `waiting` cells, at the pace of the `ended` ones, which took `elapsed` hours together.

    Without estimates all cells count alike. None if nothing is known.
    """
    if None in (*ended, *waiting):
        ended, waiting = [1.0] * len(ended), [1.0] * len(waiting)
        if not ended:
            return None
    weights = sum(hours or 0.0 for hours in ended)
    return sum(hours or 0.0 for hours in waiting) * (elapsed / weights if weights else 1.0)


class HoursLeft:
    """The hours that are left, at the pace of the cells so far. cells: those to run."""

    def __init__(self, cells: Sequence[Forecast]) -> None:
        self._start = self._last = time.monotonic()
        self._waiting, self._ended = list(cells), list[Forecast]()

    def after(self, outcome: Outcome) -> str:
        """The end of the line about `outcome`: the hours that are left, if any and if known."""
        if not outcome.fresh or not self._waiting:
            return ""
        ended = next((one for one in self._waiting if _is_of(one.request, outcome)), self._waiting[0])
        self._waiting.remove(ended)
        now = time.monotonic()
        if outcome.failure is None:
            self._ended.append(ended)
        else:
            self._start += now - self._last  # a failure tells nothing about the pace of the others
        self._last = now
        elapsed = (now - self._start) / 3600
        left = hours_left([one.hours for one in self._ended], [one.hours for one in self._waiting], elapsed)
        return f", about {number(left)} hours left" if left else ""


def _is_of(request: RunRequest, outcome: Outcome) -> bool:
    try:
        return outcome.run is not None and is_run_of(request, outcome.run.header())
    except UserError:
        return False
