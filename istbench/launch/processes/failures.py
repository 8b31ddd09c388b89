"""Failed workers: their reports, and the one error message that names the first cause."""

import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from istbench.base.activity import Progress, read_activity
from istbench.base.decode import decode_json, read_bytes
from istbench.base.errors import RunFailed, UserError

LOGS = "logs"
"""The name of the folder for the output of workers, in the scratch directory of a run."""
FORK_SERVER = "the fork server, the parent process of all workers,"
_LAST_LINES = 5
_LESS_MEMORY = "use fewer nodes, a smaller batch size or smaller workload options (see `istbench plan`)"


class WorkerLost(RunFailed):
    """A worker was killed, lost or stuck. The run itself may be sound: the same command may continue it.

    `what` is one line; `lines` is the last output of the worker. `nodes` is the number of nodes that are lost.
    """

    def __init__(self, what: str, lines: str = "", nodes: int = 1) -> None:
        super().__init__(what + lines)
        self.what, self.lines, self.nodes = what, lines, nodes

    def with_way_out(self, way_out: str) -> "WorkerLost":
        """The same error, with a way out at the end of its line."""
        return type(self)(f"{self.what}; {way_out}", self.lines)


class PeersLost(WorkerLost):
    """A worker lost a connection or timed out. Probably another worker failed first."""

    def __init__(self, what: str, lines: str = "", nodes: int = 0) -> None:
        super().__init__(what, lines, nodes)


MORE_NODES = "the run stopped with a checkpoint, to begin again with more nodes"
"""The message of `MoreNodes`, by which another machine knows it."""


class MoreNodes(WorkerLost):
    """Nothing was lost: the run stopped with a checkpoint, to begin again with more nodes."""


class StuckAtStep(WorkerLost):
    """The last losses were at the same step: another try would end alike."""


def may_go_on(error: BaseException | None) -> bool:
    """Whether `error` is a loss after which another try may end well."""
    return isinstance(error, WorkerLost) and not isinstance(error, StuckAtStep)


class FailureReport(msgspec.Struct, frozen=True):
    """The failure report of a worker."""

    kind: Literal["user", "run", "memory", "plugin", "fabric", "error"]
    message: str


def log_directory(logs: Path, rank: int) -> Path:
    """The directory of a worker's stdout.log, stderr.log and failure report."""
    return logs / f"rank-{rank}"


def failure_path(logs: Path, rank: int) -> Path:
    """The file of a worker's `FailureReport`."""
    return log_directory(logs, rank) / "failure.json"


def same_command(step: int) -> str:
    """The way out after a lost worker: the same command resumes from the checkpoint of `step` (0 for none)."""
    if step:
        return f"the same command resumes from the checkpoint of step {step}"
    return "the same command starts from step 0: no checkpoint was written yet"


def cause_in(what: str) -> str:
    """The cause in `what`, a line that may end in `same_command`, or in the like of a run on hosts."""
    return re.split("; (?:run )?the same command|; no checkpoint has been", what, maxsplit=1)[0]


def activity_path(logs: Path, rank: int) -> Path:
    """The file with a worker's current activity; see `istbench.base.activity`."""
    return log_directory(logs, rank) / "activity"


def read_progress(scratch: Path) -> Progress:
    """The progress of the worker of rank 0 with output in directory `scratch`; zeros before training starts."""
    activity = read_activity(activity_path(scratch / LOGS, 0))
    return Progress() if activity is None else activity.progress


def done_path(logs: Path, rank: int) -> Path:
    """The mark of a worker that finished its job. An exit status of 0 does not prove that."""
    return log_directory(logs, rank) / "done"


def describe(exit_codes: Mapping[int, int], logs: Path, early: str = "", *, oom: bool = False) -> Exception:
    """The error to raise for failed workers.

    When one worker dies, its peers lose their connections and fail too. They are not the cause.

    Args:
        exit_codes: of the workers that failed first, by rank.
        logs: the directory of the job's logs.
        early: output of the workers before it went to `logs`.
        oom: whether the kernel has killed a process for lack of memory meanwhile.
    """
    reports = _reports(logs)
    for report in reports.values():
        if report.kind == "user":
            return UserError(report.message)
        if report.kind == "run":
            return RunFailed(report.message)
    if lost := [rank for rank, code in sorted(exit_codes.items()) if code < 0 or rank not in reports]:
        rank, *_ = lost
        how = _how(exit_codes[rank], _while(logs, rank), oom)
        return WorkerLost(f"worker {rank} {how}", last_lines(_printed(logs, rank), early), len(lost))
    for rank, report in reports.items():
        if report.kind == "memory":
            return RunFailed(f"worker {rank} ran out of memory{report.message}; {_LESS_MEMORY}")
    for kind in ("plugin", "error", "fabric"):
        for rank, report in reports.items():
            if report.kind == kind:
                tail = last_lines(_printed(logs, rank)) if kind == "error" else ""
                if kind == "fabric":
                    return PeersLost(f"worker {rank} failed: {report.message}")
                return RunFailed(f"worker {rank} failed{_while(logs, rank)}: {report.message}{tail}")
    return RunFailed(f"a worker failed without a report; see {logs}")


def fork_server_lost(exit_code: int, logs: Path, rank: int, early: str, *, oom: bool = False) -> WorkerLost:
    """The error for a fork server that ended, and all workers with it; `rank` is one of them."""
    how = _how(exit_code, _while(logs, rank), oom)
    return WorkerLost(f"{FORK_SERVER} {how}", last_lines(early), nodes=0)


def launcher_stood(seconds: float, error: PeersLost) -> WorkerLost:
    """The `error` of workers whose launcher, which serves their store, stood still for `seconds`."""
    return WorkerLost(
        f"the launcher stood still for {seconds:.0f} s, stopped by a signal such as SIGSTOP, and its store did not "
        f"answer the workers ({error.what})",
        error.lines,
        nodes=0,
    )


def last_lines(*texts: str) -> str:
    """The end of an error message: the last lines of the first text in `texts` that is not empty."""
    for text in texts:
        lines = [line for line in text.splitlines() if line.strip()]
        if lines:
            return "; its last lines:\n" + "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])
    return "; it printed nothing"


def _reports(logs: Path) -> dict[int, FailureReport]:
    """The failure reports by rank, in order, without incomplete ones."""
    reports = {}
    for directory in logs.glob("rank-*"):
        rank = int(directory.name.removeprefix("rank-"))
        with suppress(UserError):
            reports[rank] = decode_json(read_bytes(failure_path(logs, rank), ""), FailureReport, "", "")
    return dict(sorted(reports.items()))


def _printed(logs: Path, rank: int) -> str:
    try:
        return (log_directory(logs, rank) / "stderr.log").read_text(errors="replace")
    except OSError:
        return ""


def _while(logs: Path, rank: int) -> str:
    activity = read_activity(activity_path(logs, rank))
    return f" while {activity}" if activity and activity.phase else ""


def _how(exit_code: int, while_: str, oom: bool) -> str:
    if exit_code >= 0:
        return f"ended with exit status {exit_code}{'' if exit_code else ' before its job was done'}{while_}"
    name = signal.Signals(-exit_code).name
    by_kernel = oom and name == "SIGKILL"
    hint = " (the kernel killed a process for lack of memory: see `istbench plan`)" if by_kernel else ""
    return f"was killed by {name}{while_}{hint}"
