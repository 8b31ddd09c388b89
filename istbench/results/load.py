"""Reading a results directory: runs with their curves, and what could not be read."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from istbench.cluster.clock import ClusterTime
from istbench.errors import UserError
from istbench.results.curves import Clock, Curve, Reached, time_to_target
from istbench.results.store import RunDirectory

_NEEDED = (
    "cell", "status", "workload", "workload_label", "method", "method_label", "nodes", "seed", "batch_size",
    "metric", "targets", "data", "data_source", "config", "budget", "timing_rule",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """One cell as it was recorded: its header (see `RunDirectory`) and its learning curve.

    cluster: the time of a run that is on the clock of a cluster (`replayed_run`).
    """

    header: dict[str, Any]
    curve: Curve
    directory: RunDirectory
    cluster: ClusterTime | None = None

    @property
    def done(self) -> bool:
        """Whether it trained to its end, and so counts."""
        return bool(self.header["status"] == "done")

    @property
    def targets(self) -> tuple[float, ...]:
        """The levels to report, rising: the workload's, and the one the run was to stop at."""
        own = self.header["config"].get("target")
        return tuple(sorted({*self.header["targets"], *([own] if own is not None else [])}))

    def best(self) -> float:
        """The highest value of the metric; NaN where no evaluation gave a number."""
        return self.curve.best()

    def reached(self, level: float, clock: Clock = "train_s") -> Reached | None:
        """Where the curve reaches `level`, None for a miss."""
        return time_to_target(self.curve, level, clock)


def load_run(directory: RunDirectory) -> Run:
    """The run in `directory`.

    Raises:
        UserError: naming the file, where it cannot be read or lacks something.
    """
    header = directory.header()
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        raise UserError(f"{directory.run_json} lacks {', '.join(missing)}; delete {directory.path} to run it anew")
    try:
        curve = Curve.from_events(directory.events(), header["metric"])
    except KeyError as error:
        raise UserError(
            f"{directory.events_jsonl}: an event lacks {error}; delete {directory.path} to run it anew"
        ) from None
    if header["status"] == "done" and not curve.evaluations:
        raise UserError(
            f"{directory.events_jsonl} holds no evaluation of a finished run; "
            f"delete {directory.path} to run it anew"
        )
    return Run(header=header, curve=curve, directory=directory)


def load_runs(results: Path, cells: Iterable[str] | None = None) -> tuple[list[Run], list[str]]:
    """All runs in results directory `results`, in order of their names, and a line for each unreadable one.

    cells: names of the only ones to read; one that was never started is passed over.

    Raises:
        UserError: where there is no such directory, or no run in it.
    """
    parent = results / "runs"
    way_out = f"`istbench run ... --out {results}` makes one, `istbench report DIR` reads another directory"
    try:
        directories = sorted(path for path in parent.iterdir() if path.is_dir())
    except FileNotFoundError:
        raise UserError(f"no runs in {results}: {parent} does not exist; {way_out}") from None
    except OSError as error:
        raise UserError(f"cannot read {parent}: {error.strerror}") from None
    if not directories:
        raise UserError(f"no runs in {results}: {parent} is empty; {way_out}")
    if cells is not None:
        asked = set(cells)
        directories = [path for path in directories if path.name in asked]
    runs: list[Run] = []
    problems: list[str] = []
    seen: dict[str, Path] = {}
    for path in directories:
        try:
            run = load_run(RunDirectory(path))
        except UserError as error:
            problems.append(str(error))
            continue
        first = seen.setdefault(run.header["cell"], path)
        if first is not path:
            problems.append(f"{path} left out: it is the same cell as {first}")
            continue
        runs.append(run)
    return runs, problems
