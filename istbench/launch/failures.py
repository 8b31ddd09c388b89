"""Which worker failed first, and what it said: one message out of many processes' ends."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from istbench.errors import RunFailed, UserError

_LAST_LINES = 5


def failure_path(logs: Path, rank: int) -> Path:
    """Where a worker's last word is written."""
    return logs / f"rank-{rank}.failure.json"


def describe(failures: Mapping[int, Any], logs: Path, early: str = "") -> Exception:
    """The error to raise for the elastic agent's `failures` by rank.

    `logs` is where the workers' output went, and `early` what was said before it was redirected there.
    When one worker dies, its peers lose their connections and fail too: they are not the cause.
    """
    words = [word for rank in _known_ranks(logs) if (word := _last_word(logs, rank))]
    for word in words:
        if word["kind"] == "user":
            return UserError(word["message"])
    silent = [
        rank for rank, failure in sorted(failures.items()) if failure.exitcode < 0 or not _last_word(logs, rank)
    ]
    for rank in silent:
        return RunFailed(f"worker {rank} {_how(failures[rank].exitcode)}{_tail(logs, rank, early)}")
    for kind in ("error", "fabric"):
        for word in words:
            if word["kind"] == kind:
                tail = _tail(logs, word["rank"]) if kind == "error" else ""
                return RunFailed(f"worker {word['rank']} failed: {word['message']}{tail}")
    return RunFailed(f"a worker failed without a word; see {logs}")


def _known_ranks(logs: Path) -> list[int]:
    return sorted(int(path.name.split(".")[0].removeprefix("rank-")) for path in logs.glob("rank-*.failure.json"))


def _last_word(logs: Path, rank: int) -> dict[str, Any] | None:
    try:
        return dict(json.loads(failure_path(logs, rank).read_text()))
    except (OSError, ValueError):
        return None


def _how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit status {exit_code}"
    name = signal.Signals(-exit_code).name
    hint = " (the machine may be out of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _tail(logs: Path, rank: int, early: str = "") -> str:
    said = [path.read_text(errors="replace") for path in logs.glob(f"*/attempt_*/{rank}/stderr.log")]
    for text in (*said, early):
        lines = [line for line in text.splitlines() if line.strip()]
        if lines:
            return "; its last lines:\n" + "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])
    return "; it printed nothing"
