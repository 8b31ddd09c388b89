"""Stopping a run at a local step on which all ranks agree, when its launcher requests it.

The launcher writes a file; a thread of every worker looks for it, and training pays for one comparison a step.
Ranks may be a round apart, and one may wait for another inside an exchange, so that no rank can stop at once. The
thread of every rank therefore sets a limit a little ahead of its training and posts it. Rank 0 answers with the
largest limit. A rank that reaches its own limit earlier waits for the answer. No rank passes its own limit before
that, so that none is beyond the largest, and all stop there.
"""

import math
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from istbench.base.files import writing_whole

if TYPE_CHECKING:
    from istbench.fabric.texts import Texts

END = signal.SIGUSR2
"""The signal by which a launcher ends a worker at once. SIGTERM may come from others, to all processes of a run."""

_LOOKS_S, _ANSWERS_S = 0.2, 0.02
_LEAST_STEPS = 2  # with one, a rank could wait for the others on the clock of training


class StopRequest:
    """A request to stop, and the workers' readiness for it, as files in the directory `scratch`."""

    def __init__(self, scratch: Path) -> None:
        self._request_file, self._ready_file = scratch / "stop", scratch / "trains"

    def request(self) -> bool:
        """Request a stop; False if no worker trains yet, so that none would stop."""
        if not self._ready_file.exists():
            return False
        self._request_file.touch()
        return True

    def requested(self) -> bool:
        return self._request_file.exists()

    def forget_workers(self) -> None:
        """Forget the readiness of workers that have ended."""
        self._ready_file.unlink(missing_ok=True)

    def worker_ready(self) -> None:
        """Write that a worker trains and will obey."""
        self._ready_file.touch()


class GrowRequest:
    """The time from which a larger group could train, as a file in the directory `scratch` (`--elastic`).

    The run then ends at its next evaluation, with a checkpoint.
    """

    def __init__(self, scratch: Path) -> None:
        self._file = scratch / "grow"

    def set(self, at: float | None) -> None:
        """Set the time, in seconds since 1970; None for never."""
        if at is None:
            self._file.unlink(missing_ok=True)
            return
        with writing_whole(self._file) as file:
            file.write(repr(at).encode())

    def due(self) -> bool:
        """Whether that time has come."""
        try:
            return time.time() >= float(self._file.read_bytes())
        except (OSError, ValueError):
            return False


class Stopping:
    """Stops this rank; training calls `reached` before every local step.

    ahead_s: seconds of training between a request and the limit. In this time all ranks see the request, so that
        none waits.
    """

    def __init__(
        self, request: StopRequest, texts: "Texts", rank: int, world_size: int, ahead_s: float = 0.5
    ) -> None:
        self._request, self._texts, self._rank, self._world_size = request, texts, rank, world_size
        self._ahead_s = ahead_s
        self._lock = threading.Lock()
        self._step, self._limit = 0, math.inf
        self._answered, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stopping", daemon=True)

    def start(self, step: int) -> None:
        """Look for a request from now on; training continues from local step `step`."""
        self._step = step
        self._request.worker_ready()
        self._thread.start()

    def close(self) -> None:
        self._over.set()

    def reached(self, step: int) -> bool:
        """Whether training stops before local step `step`; the same on all ranks."""
        with self._lock:
            self._step = step
            if step < self._limit:
                return False
        self._answered.wait()
        return step >= self._limit

    def _watch(self) -> None:
        looks = max(1, round(self._ahead_s / _LOOKS_S))
        seen = [(time.monotonic(), self._step)]
        while not self._request.requested():
            if self._over.wait(_LOOKS_S):
                return
            seen = [*seen[-looks:], (time.monotonic(), self._step)]
        with self._lock:
            then, before = seen[0]
            rate = (self._step - before) / max(time.monotonic() - then, _LOOKS_S)
            limit = self._step + _LEAST_STEPS + round(rate * self._ahead_s)
            self._limit = limit
        self._texts.post(f"stop/{self._rank}", str(limit))
        if self._rank == 0:
            limits = [self._awaited(f"stop/{rank}") for rank in range(self._world_size)]
            self._texts.post("stop/at", str(max(limits)))
        agreed = self._awaited("stop/at")
        with self._lock:
            self._limit = agreed
        self._answered.set()

    def _awaited(self, key: str) -> int:
        while (word := self._texts.posted(key)) is None:
            time.sleep(_ANSWERS_S)
        return int(word)
