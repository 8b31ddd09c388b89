"""Jobs of cells: submitted as far as Slurm takes them, and noted, so that a later call finds them."""

import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from istbench.backends.slurm_queue import queued_jobs
from istbench.door import decode_json, read_bytes
from istbench.errors import UserError, printable
from istbench.files import writing_whole

_SETTLES_S = 15.0  # for Slurm to count a job no more that has ended
_PATIENCE_S = 120.0  # for it to take one again, once it took some of which none is left


class _Refused(Exception):  # noqa: N818  (it says what happened to a job)
    """A job was not taken: what was said."""


class Submission:
    """Cells on their way to Slurm, which may have a limit on jobs at a time.

    Attributes:
        jobs: by cell, those that it has. left: by cell, what it is still to be given.
        failures: a line for each cell that it never took.
    """

    def __init__(self, executor: Any, noted: "Noted", say: Callable[[str], None]) -> None:
        self.jobs: dict[str, Any] = {}
        self.left: dict[str, Callable[[], str | None]] = {}
        self.failures: list[str] = []
        self._executor, self._noted, self._say = executor, noted, say
        self._alive = self._named = 0
        self._next = self._until = -math.inf
        self._told = False

    def more(self, alive: int) -> int:
        """Submit what is left, where there is hope that it is taken; returns how many cells are left then.

        `alive` is how many of the jobs have not ended.

        Raises:
            UserError: where none is taken, and none was before.
        """
        now = time.monotonic()
        if alive:
            self._until = now + _PATIENCE_S
        if alive < self._alive:
            self._next = min(self._next, now + _SETTLES_S)
        self._alive = alive
        if self.left and now >= self._next:
            self._submit(now)
        self._name_jobs()
        return len(self.left)

    def _submit(self, now: float) -> None:
        try:
            for name, job in list(self.left.items()):
                self.jobs[name] = _submitted(self._executor, job)
                self._alive, self._until = self._alive + 1, now + _PATIENCE_S
                del self.left[name]
                self._noted.add(name, str(self.jobs[name].job_id))
        except _Refused as refused:
            self._name_jobs()
            self._put_off(str(refused), now)

    def _name_jobs(self) -> None:
        new = [str(job.job_id) for job in self.jobs.values()][self._named :]
        if new:
            self._say(f"{len(new)} job{'s' * (len(new) > 1)}: {' '.join(new)}")
        self._named = len(self.jobs)

    def _put_off(self, said: str, now: float) -> None:
        if not self.jobs:
            raise UserError(f"Slurm took no job: {said}; see the options of --slurm")
        if not self._alive and now >= self._until:
            self.failures += [f"{name}: Slurm took no job for it: {said}" for name in self.left]
            self.left.clear()
            return
        self._next = math.inf if self._alive else now + _SETTLES_S
        if not self._told:
            self._told = True
            self._say(f"{len(self.left)} cells wait until jobs have ended, as Slurm takes no more: {said}")


def _submitted(executor: Any, job: Callable[[], str | None]) -> Any:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        return executor.submit(job)
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise _Refused(printable(" ".join(str(error).split()))[:400]) from None


@dataclass
class Noted:
    """The jobs that were submitted, by cell, in a file beside the results."""

    path: Path

    def find(self, name: str, executor: str) -> Any:
        """The job of a cell that Slurm still has; None where there is none."""
        identity = self._read().get(name)
        if identity is None or executor != "slurm":
            return None
        import submitit

        job: Any = submitit.SlurmJob(folder=self.path.parent / "%j", job_id=identity)
        queued = queued_jobs()
        with contextlib.suppress(OSError):
            if not job.done(force_check=True) and (queued is None or identity in queued):
                return job
        return None

    def add(self, name: str, identity: str) -> None:
        """Note the job of a cell."""
        text = json.dumps({**self._read(), name: identity}, indent=1)
        try:
            with writing_whole(self.path) as file:
                file.write(text.encode())
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}; choose another --out") from None

    def _read(self) -> dict[str, str]:
        if not self.path.exists():
            return {}
        content = read_bytes(self.path, "the jobs of a results directory")
        return decode_json(content, dict[str, str], str(self.path), "delete it, once none of its jobs is left")
