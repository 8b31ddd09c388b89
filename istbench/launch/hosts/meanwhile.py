"""Copies of new data of a run while it trains, at intervals and in a share of the time."""

import threading
import time
from collections.abc import Callable

from istbench.base.errors import RunFailed, UserError
from istbench.launch.hosts.connection import Lost, Refused
from istbench.launch.hosts.files import Pace

_EVERY_S = 15.0
# The copies may use the links that the run measures, so they take only this share of the time.
_LEAST_SHARE, _MOST_SHARE = 0.1, 0.5


class _Over(Exception):  # noqa: N818
    """The run has ended."""


class Share:
    """The share of the time for copying, so that all parts arrive within `within_s` seconds of `now`.

    It follows from the rate of the parts so far, and lies between a tenth and a half.
    """

    def __init__(self, within_s: float, now: float) -> None:
        self._until = now + within_s
        self._seconds, self._bytes = 0.0, 0

    def rest_s(self, seconds: float, size: int, left: int, now: float) -> float:
        """Seconds to rest after a part of `size` bytes that took `seconds`; `left` bytes are still to come."""
        self._seconds, self._bytes = self._seconds + seconds, self._bytes + size
        if not left:
            return 0.0
        needed_s = left * self._seconds / max(1, self._bytes)
        there_s = self._until - now
        share = needed_s / there_s if there_s > 0 else _MOST_SHARE
        return seconds * (1 / min(_MOST_SHARE, max(_LEAST_SHARE, share)) - 1)


class Meanwhile:
    """Calls `bring` repeatedly in a thread, from `start` to `stop`.

    checkpoint_every_s: least seconds between two checkpoints; each should arrive before the next is written.
    """

    def __init__(
        self, bring: Callable[[Pace], None], say: Callable[[str], None], checkpoint_every_s: float
    ) -> None:
        self._bring, self._say = bring, say
        self._within_s = max(_EVERY_S, checkpoint_every_s - _EVERY_S)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Start no further copy, without waiting for the current one."""
        self._over.set()

    def join(self) -> None:
        """Stop, and return when the copy has ended, after one part of a file at most."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        told = False
        while not self._over.wait(_EVERY_S):
            try:
                self._bring(self._paced())
                told = False
            except _Over:
                return
            except Lost:
                continue  # the thread that watches the run reports it
            except (Refused, RunFailed, UserError) as error:
                if not told and not self._over.is_set():
                    self._say(f"cannot copy the run here while it trains: {error}")
                told = True

    def _paced(self) -> Pace:
        share = Share(self._within_s, time.monotonic())

        def pace(seconds: float, size: int, left: int) -> None:
            if self._over.wait(share.rest_s(seconds, size, left, time.monotonic())):
                raise _Over

        return pace
