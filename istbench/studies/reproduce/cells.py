"""The cells of experiments: requested, and found again among the runs of a results directory."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from istbench.base.errors import UserError, unknown_name
from istbench.base.options.interval import Interval
from istbench.base.options.run import RunRequest
from istbench.report.phrases import count_threads
from istbench.results.header import Header
from istbench.results.load import Run
from istbench.studies.reproduce.figures import has
from istbench.studies.reproduce.paper import Cells, Experiment, Extent, Paper, Scale, Subject

_ALWAYS_EQUAL = ("workload", "method", "nodes", "seed", "amp", "channels_last", "compile", "target", "lab")
_EQUAL_IF_GIVEN = ("steps", "batch_size")


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Changes of the user to the cells of a paper.

    Attributes:
        nodes: in place of those of cells on several nodes; None leaves them. seeds: number of them; None leaves it.
        data: directories of data, by workload. run: options of the machine, fields of `RunRequest`.
    """

    nodes: int | None = None
    seeds: int | None = None
    data: Mapping[str, Path] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    def requests(self, cells: Cells) -> list[RunRequest]:
        """The requested cells of `cells`, all methods of one seed before the next seed."""
        suite = cells.suite
        if self.seeds is not None:
            suite = dataclasses.replace(suite, seeds=tuple(range(self.seeds)))
        if self.nodes is not None and max(suite.nodes) > 1:
            suite = dataclasses.replace(suite, nodes=(self.nodes,))
        directory = self.data.get(suite.workload)
        return [msgspec.structs.replace(request, data=directory, **self.run) for request in suite.requests()]


def select(paper: Paper, only: Sequence[str], scale: Scale) -> tuple[Experiment, ...]:
    """The experiments named `only` at `scale`, in the order of the paper; all of them for none.

    Raises:
        UserError: for an unknown name, with the nearest one, or for a table that `scale` lacks.
    """
    known = {experiment.name: experiment for experiment in paper.experiments}
    for name in only:
        if name not in known:
            raise unknown_name("table", name, known, f"of {paper.name}")
        if scale not in known[name].at:
            raise UserError(f"{name} is too large for --scale {scale}; ask for --scale {', '.join(known[name].at)}")
    wanted = only or known
    return tuple(one for name, one in known.items() if name in wanted and scale in one.at)


def with_data(
    experiments: Sequence[Experiment], scale: Scale, data: Collection[str], *, named: bool
) -> tuple[tuple[Experiment, ...], list[str]]:
    """The `experiments` that can train, and a line for each other one.

    data: workloads for which the user gives a directory. named: whether the user asked for these tables by name.

    Raises:
        UserError: if the user named a table whose data is missing, or if no table can train.
    """
    kept, lines = [], []
    for experiment in experiments:
        needed = experiment.at[scale].needed(data)
        if needed:
            line = f"{experiment.name} needs real data: give {needed}"
            if named:
                raise UserError(line)
            lines.append(f"left out: {line}")
        else:
            kept.append(experiment)
    if not kept:
        raise UserError("; ".join(line.removeprefix("left out: ") for line in lines))
    return tuple(kept), lines


def requests_of(extents: Iterable[Extent], overrides: Overrides) -> list[RunRequest]:
    """The cells of `extents`, each once: the first seed of all tables, then the next one.

    An interrupted command has every table with a few seeds, rather than a few tables with every seed.
    """
    found: list[RunRequest] = []
    for extent in extents:
        for cells in extent.cells:
            found += [request for request in overrides.requests(cells) if request not in found]
    return sorted(found, key=lambda request: request.seed)


def subjects_of(extent: Extent, overrides: Overrides, runs: Sequence[Run], fresh: Collection[str]) -> list[Subject]:
    """The methods of `extent` with their finished runs among `runs`.

    fresh: names of cells of this command. They come before other runs of the same request, such as runs on other
    data.
    """
    done = [run for run in runs if run.done]
    subjects: list[Subject] = []
    for cells in extent.cells:
        requests = overrides.requests(cells)
        for first in (request for request in requests if request.seed == requests[0].seed):
            own = [one for one in requests if one == msgspec.structs.replace(first, seed=one.seed)]
            found = [run for request in own if (run := run_of(request, done, fresh)) is not None]
            subjects.append(Subject(request=first, seeds=len(own), runs=tuple(found)))
    return subjects


def is_run_of(request: RunRequest, header: Header) -> bool:
    """Whether the run of `header` trained the cell of `request`, on any data."""
    config = header.config
    if any(getattr(config, name) != getattr(request, name) for name in _ALWAYS_EQUAL):
        return False
    if any(getattr(request, name) not in (None, getattr(config, name)) for name in _EQUAL_IF_GIVEN):
        return False
    if request.threads not in (None, header.threads) or request.device not in ("auto", config.device):
        return False
    every = request.eval_every
    if every is not None and every.steps is not None:  # a shorter run records its own length
        every = Interval(steps=min(every.steps, config.steps))
    if every not in (None, config.eval_every):
        return False
    if request.epochs is not None and header.budget.split(",")[0] != f"{request.epochs:g} epochs":
        return False
    return has(config.workload_options, request.workload_options) and has(
        config.method_options, request.method_options
    )


def of_latest_data(
    extents: Iterable[Extent], overrides: Overrides, runs: Sequence[Run], fresh: Collection[str]
) -> tuple[list[Run], list[str]]:
    """The `runs` without those on other data or threads than the latest run of their cells, and a line for each.

    Seeds on different data have no median, and those on more threads are faster.

    fresh: names of cells of this command, which count as the latest.
    """
    others: dict[str, str] = {}
    for extent in extents:
        for cells in extent.cells:
            requests = overrides.requests(cells)
            own = [run for run in runs if run.done and any(is_run_of(request, run.header) for request in requests)]
            headers = [run.header for run in sorted(own, key=lambda run: _age(run, fresh))]
            threads = {header.nodes: header.threads for header in headers}  # of the latest
            for header in headers:
                data, latest = header.data_source, headers[-1].data_source
                if data.fingerprint != latest.fingerprint:
                    others[header.cell] = f"{header.cell}: its data are {data.seen}; the latest are {latest.seen}"
                elif header.threads != threads[header.nodes]:
                    own_threads, of_latest = count_threads(header.threads), threads[header.nodes]
                    others[header.cell] = (
                        f"{header.cell}: its nodes have {own_threads}; those of the latest have {of_latest}"
                    )
    return [run for run in runs if run.header.cell not in others], list(others.values())


def run_of(request: RunRequest, runs: Sequence[Run], fresh: Collection[str] = ()) -> Run | None:
    """The latest run of `request`; those of `fresh` first."""
    own = [run for run in runs if is_run_of(request, run.header)]
    return max(own, key=lambda run: _age(run, fresh), default=None)


def _age(run: Run, fresh: Collection[str]) -> tuple[bool, str]:
    return run.header.cell in fresh, run.header.finished_at or ""
