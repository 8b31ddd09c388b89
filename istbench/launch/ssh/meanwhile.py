"""What is new of a run, brought home every so often while it goes on."""

import threading
from collections.abc import Callable

from istbench.errors import RunFailed
from istbench.launch.ssh.connection import Lost, Refused
from istbench.launch.ssh.files import Pace

_EVERY_S = 15.0
# The links that it goes over are those that are timed: of them it takes a tenth of the time.
_RESTS = 9.0


class _Over(Exception):  # noqa: N818
    """The run is."""


class Meanwhile:
    """Calls `bring` again and again in a thread of its own, from `start` to `stop`."""

    def __init__(self, bring: Callable[[Pace], None], say: Callable[[str], None]) -> None:
        self._bring, self._say = bring, say
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
                self._bring(self._pace)
                told = False
            except _Over:
                return
            except Lost:
                continue  # whoever watches the run notices, and says so
            except (Refused, RunFailed) as error:
                if not told and not self._over.is_set():
                    self._say(f"the run does not come home meanwhile: {error}")
                told = True

    def _pace(self, seconds: float) -> None:
        if self._over.wait(_RESTS * seconds):
            raise _Over
