"""What is new of a run, brought home every so often while it goes on."""

import threading
import time
from collections.abc import Callable

from istbench.errors import RunFailed
from istbench.hosts.connection import Lost, Refused
from istbench.hosts.files import Pace

_EVERY_S = 15.0
# The links that it goes over are those that are timed: it sends in this share of the time, at least and at most.
_LEAST_SHARE, _MOST_SHARE = 0.1, 0.5


class _Over(Exception):  # noqa: N818
    """The run is."""


class Share:
    """The share of the time that sending takes, so that all parts are here within `within_s` seconds of `now`.

    It is no more than they need, at the rate of the parts so far, and between a tenth and a half.
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
    """Calls `bring` again and again in a thread of its own, from `start` to `stop`.

    checkpoint_every_s: least seconds between two checkpoints; one is to be here before the next is written.
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
        """Bring no more, without waiting until what goes on has stopped."""
        self._over.set()

    def join(self) -> None:
        """Return when nothing is being brought any more, which takes as long as a part of a file at most."""
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
                continue  # whoever watches the run notices, and says so
            except (Refused, RunFailed) as error:
                if not told and not self._over.is_set():
                    self._say(f"the run does not come home meanwhile: {error}")
                told = True

    def _paced(self) -> Pace:
        share = Share(self._within_s, time.monotonic())

        def pace(seconds: float, size: int, left: int) -> None:
            if self._over.wait(share.rest_s(seconds, size, left, time.monotonic())):
                raise _Over

        return pace
