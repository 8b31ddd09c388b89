"""The seam to where workers run, here or elsewhere: start them, watch them, end them."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What workers are to do: `target(*args)`, once on every node.

    Attributes:
        target: a function that can be imported by its name. args: what it is given, the same on every node.
        nodes: number of workers. threads: what a worker's libraries may use, unless it says otherwise.
        logs: directory for what the workers print and for their last words; made empty first.
        timeout_s: seconds after which a worker is given up that does not end a step; None for no limit.
    """

    target: Callable[..., None]
    args: tuple[object, ...] = ()
    nodes: int
    threads: int = 1
    logs: Path
    timeout_s: float | None = None


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

    Raises:
        UserError, RunFailed: as `Launcher.start` and `Workers.wait` do.
        KeyboardInterrupt: after SIGTERM, SIGINT, SIGQUIT, or SIGHUP unless it is ignored, as under nohup.
    """
    with Signals() as signals:
        workers = launcher.start(job)
        try:
            with signals.raised():
                workers.wait()
        finally:
            workers.end()


class Signals:
    """Signals that end a job. One that comes where it would leave half of them started or ended waits its turn."""

    def __init__(self) -> None:
        self._came: signal.Signals | None = None
        self._raised = False

    def __enter__(self) -> "Signals":
        heard = _ENDING if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (*_ENDING, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._hear) for number in heard}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if kind is not KeyboardInterrupt:
            self._raise()

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Inside, a signal raises KeyboardInterrupt, also one that came before."""
        self._raised = True
        try:
            self._raise()
            yield
        finally:
            self._raised = False

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._came = signal.Signals(number)
        if self._raised:
            self._raise()

    def _raise(self) -> None:
        if self._came is not None:
            raise KeyboardInterrupt(self._came.name)
