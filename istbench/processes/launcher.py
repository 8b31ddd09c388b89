"""The seam to where workers run, here or elsewhere: start them, watch them, end them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from istbench.node.stopping import StopRequest

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_STOPS_S = 10.0
_STOPPING = (
    b"stopping after a step, with a checkpoint, for ten seconds at most; the same signal again ends at once\n"
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What workers are to do: `target(*args)`, once on every node.

    Attributes:
        target: a function that can be imported by its name. args: what it is given, the same on every node.
        nodes: number of workers. threads: what a worker's libraries may use, unless it says otherwise.
        logs: directory for what the workers print and for their last words; made empty first.
        timeout_s: seconds after which a worker is given up that does not end a step; None for no limit.
        stop: by which workers that can are asked to stop, and then end well; None where they cannot.
    """

    target: Callable[..., None]
    args: tuple[object, ...] = ()
    nodes: int
    threads: int = 1
    logs: Path
    timeout_s: float | None = None
    stop: StopRequest | None = None


class Workers(Protocol):
    """The workers of a job that has been started."""

    def wait(self) -> None:
        """Return when all have ended well.

        Raises:
            UserError: where a worker raised one.
            RunFailed: where a worker died, naming it and its last lines.
        """

    def end(self) -> None:
        """End those that are left and take down what they ran in; afterwards there is none. Twice does no harm."""


class Launcher(Protocol):
    """A way to run workers, and a network for them."""

    def start(self, job: Job) -> Workers:
        """Set the workers of `job` going, without waiting until they are at work; all of them, or none.

        Each finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment.
        They end when the process that called this does, however it ends.

        Raises:
            UserError: where this launcher cannot be used here.
            RunFailed: where a worker cannot be started.
        """


def launch(launcher: Launcher, job: Job) -> None:
    """Run `job` to its end; no worker is left afterwards. Call it from the main thread.

    The first signal asks the workers to stop, and gives them ten seconds for it; a second one ends them at once.

    Raises:
        UserError, RunFailed: as `Launcher.start` and `Workers.wait` do.
        KeyboardInterrupt: after SIGTERM, SIGINT, SIGQUIT, or SIGHUP unless it is ignored, as under nohup.
    """
    with Signals() as signals:
        workers = launcher.start(job)
        try:
            with signals.raised(job.stop):
                workers.wait()
        finally:
            workers.end()


class Signals:
    """Signals that end a job. One that comes where it would leave half of them started or ended waits its turn."""

    def __init__(self) -> None:
        self._came: signal.Signals | None = None
        self._raised = False
        self._stop: StopRequest | None = None
        self._late: threading.Timer | None = None

    def __enter__(self) -> "Signals":
        heard = _ENDING if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (*_ENDING, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._hear) for number in heard}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late.join()
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if kind is not KeyboardInterrupt:
            self._raise()

    @contextmanager
    def raised(self, stop: StopRequest | None = None) -> Iterator[None]:
        """Inside, a signal raises KeyboardInterrupt, also one that came before.

        If workers heed `stop`, the first signal asks them to; a second one raises, or the end of their time.
        """
        self._raised, self._stop = True, stop
        try:
            self._raise()
            yield
        finally:
            self._raised = False

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        first, self._came = self._came is None, signal.Signals(number)
        if self._raised and not (first and self._ask()):
            self._raise()

    def _ask(self) -> bool:
        """Ask the workers to stop; False where they cannot."""
        if self._stop is None or not self._stop.request():
            return False
        os.write(2, _STOPPING)  # what prints may have been interrupted
        main = threading.main_thread().ident
        assert main is not None
        self._late = threading.Timer(_STOPS_S, signal.pthread_kill, (main, self._came))
        self._late.daemon = True
        self._late.start()
        return True

    def _raise(self) -> None:
        if self._came is not None:
            raise KeyboardInterrupt(self._came.name)
