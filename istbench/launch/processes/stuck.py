"""Find stuck workers: a step that never ends, a process that a signal stopped."""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from istbench.base.activity import Unchanged, read_activity
from istbench.base.processes import stat_of
from istbench.launch.processes.failures import WorkerLost, activity_path

# The fabric times out first: its message names the missing rank, and takes a few seconds to arrive.
_LATER_S = 6.0
_LONGEST_LOOK_S = 2.0


class Watch:
    """Watches the workers of this machine by their activity files in `logs`.

    A worker may compute for up to `timeout_s` in one training step or one batch of an evaluation (None for no
    limit). The fabric bounds the time that a worker waits for others.
    """

    def __init__(self, logs: Path, timeout_s: float | None) -> None:
        self._logs, self._timeout_s = logs, timeout_s
        self._unchanged = Unchanged(_LONGEST_LOOK_S)

    def look(self, processes: Mapping[int, int]) -> None:
        """Check the living `processes` (process ids by rank).

        Raises:
            WorkerLost: if some are stuck; the message names them.
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
                f"{_all_doing(self._logs, stuck)} for more than --timeout {self._timeout_s:g} s without finishing; "
                "if this work only takes long, give a longer --timeout"
            )

    def stopped(self, processes: Mapping[int, int]) -> list[int]:
        """The ranks of `processes` that a signal has stopped (Linux only)."""
        return [rank for rank, process in processes.items() if state_of(process) == "T"]

    def of_stopped(self, ranks: Iterable[int]) -> WorkerLost:
        """The error for workers that a signal has stopped."""
        return WorkerLost(
            f"{_all_doing(self._logs, ranks)} when a signal (SIGSTOP) stopped it, and did not continue"
            + (f" within --timeout {self._timeout_s:g} s" if self._timeout_s is not None else "")
        )


def _all_doing(logs: Path, ranks: Iterable[int]) -> str:
    did = {rank: str(read_activity(activity_path(logs, rank)) or "") for rank in ranks}
    return ", ".join(f"worker {rank} was {activity or 'starting'}" for rank, activity in did.items())


def state_of(process: int) -> str:
    """The state of `process`, for example T for stopped and Z for ended; empty if unknown (Linux only)."""
    fields = stat_of(process)
    return fields[0] if fields else ""


def exit_code_of(process: int) -> int | None:
    """The exit code of `process` if it has ended and its parent has not noticed; negative for a signal."""
    fields = stat_of(process)
    return os.waitstatus_to_exitcode(int(fields[-1])) if fields and fields[0] == "Z" else None
