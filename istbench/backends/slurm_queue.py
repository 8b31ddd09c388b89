"""What Slurm's queue says of jobs: all there is to know of their end where a Slurm keeps no accounts."""

import getpass
import subprocess
import time

_EVERY_S = 10.0
_GONE_S = 30.0  # for a result to appear on a shared file system when its job has left the queue
_LIMIT_S = 60.0


def queued_jobs() -> set[str] | None:
    """Identities of this user's jobs that Slurm has; None where it does not say."""
    try:
        asked = ["squeue", "--noheader", "--format=%A", f"--user={getpass.getuser()}"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, KeyError, subprocess.TimeoutExpired):
        return None
    return set(done.stdout.split()) if done.returncode == 0 else None


class Queue:
    """The queue over time: jobs that are not in it for long are gone."""

    def __init__(self) -> None:
        self._asked = -_EVERY_S
        self._jobs: set[str] | None = None
        self._since: dict[str, float] = {}

    def lacks(self, identity: str) -> bool:
        """Whether it has been without job `identity` for so long that no result is to be expected."""
        now = time.monotonic()
        if now - self._asked >= _EVERY_S:
            self._asked, self._jobs = now, queued_jobs()
        if self._jobs is None or identity in self._jobs:
            self._since.pop(identity, None)
            return False
        return now - self._since.setdefault(identity, now) >= _GONE_S
