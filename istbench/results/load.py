"""Read a results directory: its runs with their curves, and a line for each unreadable run."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from istbench.base.decode import missing_file
from istbench.base.errors import UserError, is_divergence, printable
from istbench.base.files import is_file
from istbench.base.options.data_source import DataSource
from istbench.cluster.clock import ClusterTime
from istbench.results.curves import Curve, Reached
from istbench.results.events import Event, Stall, counted, speeds_of
from istbench.results.header import Header
from istbench.results.run_parts import Resized, Restart, changes, resizes, restarts
from istbench.results.store import RunDirectory

_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Run:
    """A recorded run: its header and its learning curve.

    Attributes:
        changes: a line for its restarts, and for each change of machine, versions or source tree between its parts
            (`results.run_parts`).
        restarts: after losses, by itself. resizes: changes of the number of nodes.
        shares: relative speeds by which unequal nodes shared the work, by rank: given or measured; empty if equal.
        supposed_shares: whether it trained on equal nodes, and only a replay has its shares.
        stalls: times in its train seconds in which something outside training held it up.
        levels: levels of the metric that the user selected for the report.
        cluster: shares of its time on a cluster, if the curve is on the clock of one (`run_on_cluster`).
        extrapolated_from: nodes of the recorded run, if this one was never run but dealt from it (`plan.redeal`).
    """

    header: Header
    curve: Curve
    directory: RunDirectory
    changes: tuple[str, ...] = ()
    restarts: tuple[Restart, ...] = ()
    shares: tuple[float, ...] = ()
    resizes: tuple[Resized, ...] = ()
    supposed_shares: bool = False
    stalls: tuple[Stall, ...] = ()
    levels: tuple[float, ...] = ()
    cluster: ClusterTime | None = None
    extrapolated_from: int | None = None

    def on_data(self, source: DataSource | None) -> "Run":
        """This run with the data of a command, if known: a finished run may have had the same from elsewhere."""
        if source is None:
            return self
        return dataclasses.replace(self, header=msgspec.structs.replace(self.header, data_source=source))

    def on_wall_clock(self) -> "Run":
        """This run with its curve on the clock that never stops."""
        return dataclasses.replace(
            self, curve=self.curve.on_clock("wall_s", (at.wall_s for at in self.curve.evaluations))
        )

    @property
    def done(self) -> bool:
        """Whether it trained to its end. Only such runs count."""
        return self.header.status == "done"

    @property
    def diverged(self) -> bool:
        """Whether its loss became a value that is no number, so that it has no end: a miss of every target."""
        return self.header.status == "failed" and is_divergence(self.header.error)

    @property
    def stalled_s(self) -> float:
        return sum(stall.seconds for stall in self.stalls)

    @property
    def doubt(self) -> str:
        """A reason to doubt its replayed seconds; empty without a reason."""
        return "" if self.cluster is None else self.cluster.doubt

    @property
    def targets(self) -> tuple[float, ...]:
        """The levels to report, the easiest first: the user's, or else those of the workload and `--target`.

        The latter belong to the metric of the workload. Another metric has none.
        """
        metric, own = self.curve.metric, self.header.config.target
        if self.levels or metric.name != self.header.metric:
            return metric.easiest_first(self.levels)
        return metric.easiest_first([*self.header.targets, *([own] if own is not None else [])])

    def reached(self, level: float) -> Reached | None:
        """The point at which the curve reaches `level`; None for a miss."""
        return self.curve.reached(level)


def load_run(directory: RunDirectory) -> Run:
    """The run in `directory`.

    Raises:
        UserError: with the name of a file that is unreadable or incomplete.
    """
    header = directory.header()
    events = directory.events()
    curve = Curve.from_events(events, header.own_metric)
    if header.status == "done":
        _require_end(header, curve, directory)
    return Run(
        header=header,
        curve=curve,
        directory=directory,
        changes=tuple(changes(events)),
        restarts=tuple(restarts(events)),
        shares=_shares(header, events),
        resizes=tuple(resizes(events)),
        stalls=stalls_of(events),
    )


def _shares(header: Header, events: Sequence[Event]) -> tuple[float, ...]:
    shares = header.config.shares
    found = () if shares is None else shares.speeds or speeds_of(events)
    return found if len(found) == header.nodes else ()


def _require_end(header: Header, curve: Curve, directory: RunDirectory) -> None:
    """Check that the curve of a finished run ends in its result: lost or other events would make a wrong curve."""
    last, result = (curve.evaluations or (None,))[-1], header.result
    if last is None:
        found = "holds no evaluation of a finished run"
    elif result is not None and (last.step, last.metrics) != (result.steps, result.final):
        found = f"ends in an evaluation of step {last.step} that is not the run's result of step {result.steps}"
    else:
        return
    raise UserError(f"{directory.events_jsonl} {found}; delete {directory.path} to run the cell again")


def load_runs(results: Path, cells: Iterable[str] | None = None) -> tuple[list[Run], list[str]]:
    """As `load_all_runs`, without those with faults; a line has their number."""
    runs, faulty, problems = load_all_runs(results, cells)
    if faulty:
        count = "1 run" if len(faulty) == 1 else f"{len(faulty)} runs"
        problems.append(f"{count} with faults, which `istbench report` shows")
    return runs, problems


def _results_near(results: Path) -> list[str]:
    """At most three results directories inside `results`, beside it, or around it as one of their runs."""
    if results.parent.name == "runs":
        found = [results.parent]
    else:
        found = sorted((results if results.is_dir() else results.parent).glob("*/runs"))
    return [printable(str(path.parent)) for path in found if path.is_dir()][:_MOST_NAMED]


def _instead_of_file(results: Path) -> str:
    directory = "give a directory that has runs/"
    if results.suffix in (".zip", ".tar", ".gz", ".tgz", ".xz"):
        return "unpack it, and give the directory in it that has runs/"
    records = "; `istbench replay` takes a file of `istbench record`" if results.suffix == ".json" else ""
    return f"{directory}{records}"


def load_all_runs(results: Path, cells: Iterable[str] | None = None) -> tuple[list[Run], list[Run], list[str]]:
    """All runs in results directory `results`, in order of their names, and a line for each unreadable one.

    Runs with the faults of `istbench faults` are the second list; their seconds compare with no others.

    cells: names of the only cells to read. Names of cells that never started are ignored.

    Raises:
        UserError: if there is no such directory, or no run in it.
    """
    parent = results / "runs"
    way_out = f"`istbench run ... --out {results}` makes one; or name another directory"
    try:
        directories = sorted(path for path in parent.iterdir() if path.is_dir())
    except FileNotFoundError:
        if results.suffix == ".json":
            raise missing_file(results, "a file of `istbench record`") from None
        near = _results_near(results)
        way_out = f"{', '.join(near)} {'has' if len(near) == 1 else 'have'} some" if near else way_out
        raise UserError(f"no runs in {results}: {parent} does not exist; {way_out}") from None
    except OSError as error:
        if is_file(results):
            raise UserError(f"{results} is a file; {_instead_of_file(results)}") from None
        raise UserError(f"cannot read {parent}: {error.strerror}; {way_out}") from None
    if not directories:
        raise UserError(f"no runs in {results}: {parent} is empty; {way_out}")
    if cells is not None:
        selected = set(cells)
        directories = [path for path in directories if path.name in selected]
    runs: list[Run] = []
    problems: list[str] = []
    for path in directories:
        try:
            runs.append(load_run(RunDirectory(path)))
        except UserError as error:
            problems.append(str(error))
    kept: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.directory.path.name != run.header.cell):  # copies last
        first = kept.setdefault(run.header.cell, run)
        if first is not run:
            copied = (run.header.started_at, run.header.host) == (first.header.started_at, first.header.host)
            more = "" if copied else "; report this other run from a results directory of its own"
            what = "a copy of" if copied else "has the cell of"
            problems.append(f"{run.directory.path}: {what} {first.directory.path}, which is shown{more}")
    runs = [run for run in runs if kept[run.header.cell] is run]
    faulty = [run for run in runs if run.header.config.faults is not None]
    return [run for run in runs if run.header.config.faults is None], faulty, problems


def stalls_of(events: Iterable[Event]) -> tuple[Stall, ...]:
    return tuple(event for event in counted(events) if isinstance(event, Stall))
