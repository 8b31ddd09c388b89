"""Workers that do not go on: a step that never ends, a process that was stopped."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from istbench.activity import Unchanged, read_activity
from istbench.processes.failures import WorkerLost, activity_path

# The fabric's own time-outs come first: a rank that waits knows more, and needs a few seconds to say it.
_LATER_S = 6.0
_LONGEST_LOOK_S = 2.0


class Watch:
    """Looks again and again at the workers of this machine, whose activities lie in `logs`.

    A worker that computes may not stay in one step, or in one batch of an evaluation, for longer than `timeout_s`.
    A worker that waits for others is left to the fabric, which bounds that. None has no limit.
    """

    def __init__(self, logs: Path, timeout_s: float | None) -> None:
        self._logs, self._timeout_s = logs, timeout_s
        self._unchanged = Unchanged(_LONGEST_LOOK_S)

    def look(self, processes: Mapping[int, int]) -> None:
        """Look at the living `processes`, by rank.

        Raises:
            WorkerLost: where some do not go on, naming them.
        """
        if self._timeout_s is None:
            return
        limit = self._timeout_s + _LATER_S
        stopped, stuck, now = self.stopped(processes), [], time.monotonic()
        for rank in processes:
            activity = read_activity(activity_path(self._logs, rank))
            timed = activity is not None and activity.timed and not activity.waits
            state = activity if timed or rank in stopped else now
            if self._unchanged.seconds(rank, state, now) >= limit:
                stuck.append(rank)
        if here := [rank for rank in stuck if rank in stopped]:
            raise self.of_stopped(here)
        if stuck:
            raise WorkerLost(
                f"{_all_doing(self._logs, stuck)} for more than --timeout {self._timeout_s:g} s without an end; "
                "if that is no mistake of the method or the workload, give a longer --timeout"
            )

    def stopped(self, processes: Mapping[int, int]) -> list[int]:
        """The ranks of `processes` that a signal has stopped (Linux)."""
        return [rank for rank, process in processes.items() if _state(process) == "T"]

    def of_stopped(self, ranks: Iterable[int]) -> WorkerLost:
        """The error for workers that a signal has stopped."""
        return WorkerLost(
            f"{_all_doing(self._logs, ranks)} when a signal (SIGSTOP) stopped it, and did not go on"
            + (f" within --timeout {self._timeout_s:g} s" if self._timeout_s is not None else "")
        )


def _all_doing(logs: Path, ranks: Iterable[int]) -> str:
    did = {rank: str(read_activity(activity_path(logs, rank)) or "") for rank in ranks}
    return ", ".join(f"worker {rank} was {activity or 'starting'}" for rank, activity in did.items())


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
