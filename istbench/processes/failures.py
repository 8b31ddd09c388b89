"""Which worker failed first, and what it said: one message out of many processes' ends."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from istbench.activity import read_activity
from istbench.errors import RunFailed, UserError

_LAST_LINES = 5
_LESS_MEMORY = "use fewer nodes, a smaller batch size or smaller workload options (see `istbench plan`)"


class WorkerLost(RunFailed):
    """A worker was killed, lost or stuck, which says nothing against the run: the same command may go on.

    `what` is one line, `lines` what the worker printed last.
    """

    def __init__(self, what: str, lines: str = "") -> None:
        super().__init__(what + lines)
        self.what, self.lines = what, lines

    def with_way_out(self, way_out: str) -> "WorkerLost":
        """The same, with a way out at the end of its line."""
        return type(self)(f"{self.what}; {way_out}", self.lines)


class PeersLost(WorkerLost):
    """A worker failed because others did, as far as is known: a connection broke, or time was out."""


def log_directory(logs: Path, rank: int) -> Path:
    """Where a worker's stdout.log and stderr.log lie, and its last word."""
    return logs / f"rank-{rank}"


def last_word_path(logs: Path, rank: int) -> Path:
    """Where a worker's last word is written: message, and kind: user, run, memory, plugin, fabric or error."""
    return log_directory(logs, rank) / "failure.json"


def same_command(step: int) -> str:
    """The way out after a loss: whether the same command goes on, from the checkpoint of `step`; 0 for none."""
    if step:
        return f"the same command goes on from the checkpoint of step {step}"
    return "the same command starts anew: no checkpoint was written yet"


def activity_path(logs: Path, rank: int) -> Path:
    """Where a worker keeps what it does now; see `istbench.activity`."""
    return log_directory(logs, rank) / "activity"


def done_path(logs: Path, rank: int) -> Path:
    """Where a worker leaves a mark when it has done all it was to do: an exit status of 0 does not say that."""
    return log_directory(logs, rank) / "done"


def describe(exit_codes: Mapping[int, int], logs: Path, early: str = "") -> Exception:
    """The error to raise for workers that failed: `exit_codes` by rank, of those that did first.

    `logs` is their job's, and `early` what was said before their output went there. When one worker dies, its
    peers lose their connections and fail too: they are not the cause.
    """
    words = _last_words(logs)
    for word in words.values():
        if word["kind"] == "user":
            return UserError(word["message"])
        if word["kind"] == "run":
            return RunFailed(word["message"])
    for rank, exit_code in sorted(exit_codes.items()):
        if exit_code < 0 or rank not in words:
            while_ = _while(logs, rank)
            return WorkerLost(f"worker {rank} {_how(exit_code, while_)}", last_lines(_said(logs, rank), early))
    for rank, word in words.items():
        if word["kind"] == "memory":
            return RunFailed(f"worker {rank} ran out of memory{word['message']}; {_LESS_MEMORY}")
    for kind in ("plugin", "error", "fabric"):
        for rank, word in words.items():
            if word["kind"] == kind:
                tail = last_lines(_said(logs, rank)) if kind == "error" else ""
                if kind == "fabric":
                    return PeersLost(f"worker {rank} failed: {word['message']}")
                return RunFailed(f"worker {rank} failed{_while(logs, rank)}: {word['message']}{tail}")
    return RunFailed(f"a worker failed without a word; see {logs}")


def fork_server_lost(exit_code: int, logs: Path, rank: int, early: str) -> WorkerLost:
    """The error for a fork server that ended, with all workers; `rank` is one of them."""
    how = _how(exit_code, _while(logs, rank))
    return WorkerLost(f"the fork server, the parent process of all workers, {how}", last_lines(early))


def last_lines(*texts: str) -> str:
    """The end of a message: the last lines of the first of `texts` that has any."""
    for text in texts:
        lines = [line for line in text.splitlines() if line.strip()]
        if lines:
            return "; its last lines:\n" + "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])
    return "; it printed nothing"


def _last_words(logs: Path) -> dict[int, dict[str, Any]]:
    """By rank, in order. One that was cut short is left out, as if never said."""
    words = {}
    for directory in logs.glob("rank-*"):
        rank = int(directory.name.removeprefix("rank-"))
        try:
            words[rank] = dict(json.loads(last_word_path(logs, rank).read_text()))
        except (OSError, ValueError):
            continue
    return dict(sorted(words.items()))


def _said(logs: Path, rank: int) -> str:
    try:
        return (log_directory(logs, rank) / "stderr.log").read_text(errors="replace")
    except OSError:
        return ""


def _while(logs: Path, rank: int) -> str:
    activity = read_activity(activity_path(logs, rank))
    return f" while {activity}" if activity and activity.phase else ""


def _how(exit_code: int, while_: str) -> str:
    if exit_code >= 0:
        return f"ended with exit status {exit_code}{'' if exit_code else ' before it was done'}{while_}"
    name = signal.Signals(-exit_code).name
    hint = " (the machine may be out of memory: see `istbench plan`)" if name == "SIGKILL" else ""
    return f"was killed by {name}{while_}{hint}"
