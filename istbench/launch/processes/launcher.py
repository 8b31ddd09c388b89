"""The interface of launchers: start the workers of a job, watch them, end them."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from istbench.base.errors import RunFailed, UserError
from istbench.launch.processes.failures import WorkerLost
from istbench.node.stopping import StopRequest

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
"""Signals that end a job. They may reach all of its processes; the launcher alone decides how to react."""

_SAME_S = 0.2  # `timeout` signals its command, and then the process group with the command
# torchrun kills its processes so many seconds after a signal. A launcher ends its workers earlier, to record that.
_TORCHRUN_S, _EARLIER_S = 30.0, 10.0
_TORCHRUN_LIMIT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A call of `target(*args)` on every node.

    Attributes:
        target: a function that can be imported by its name. args: its arguments, the same on every node.
        nodes: number of workers. threads: default number of threads for a worker's libraries.
        logs: directory for the workers' output and failure reports; the launcher empties it first.
        timeout_s: seconds a worker may spend in one step; None for no limit.
        stop: the request that asks workers to stop after a step; None if they cannot.
    """

    target: Callable[..., None]
    args: tuple[object, ...] = ()
    nodes: int
    threads: int = 1
    logs: Path
    timeout_s: float | None = None
    stop: StopRequest | None = None


class Workers(Protocol):
    """The workers of a started job."""

    def wait(self) -> None:
        """Return when all workers have finished their job.

        Raises:
            UserError: if a worker raised one.
            RunFailed: if a worker died. The message names it and its last lines.
        """

    def end(self) -> None:
        """End the remaining workers and remove their place. A second call does nothing."""


class Launcher(Protocol):
    """Runs workers and provides a network for them."""

    def start(self, job: Job) -> Workers:
        """Start all workers of `job`, or none. Do not wait until they run.

        Their environment has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. They end
        with the calling process, however it ends.

        Raises:
            UserError: if this launcher does not work here.
            RunFailed: if a worker does not start.
        """


def launch(launcher: Launcher, job: Job) -> None:
    """Run `job` to its end. Afterwards no worker runs. Call it from the main thread.

    The first signal asks the workers to stop with a checkpoint. A second signal ends them at once. Workers that are
    stuck end by `Job.timeout_s`, and under torchrun also by `stops_within_s`.

    Raises:
        UserError, RunFailed: from `Launcher.start` and `Workers.wait`.
        KeyboardInterrupt: after SIGTERM, SIGINT, SIGQUIT, or SIGHUP (unless ignored, as under nohup).
            Its cause is the error of the workers themselves, such as a full disk, if they had one.
    """
    with Signals() as signals:
        workers = launcher.start(job)
        try:
            with signals.raised(job.stop):
                workers.wait()
        finally:
            workers.end()


def stops_within_s(environment: Mapping[str, str]) -> float | None:
    """Seconds after which workers that have not stopped are ended; None for no limit.

    A step, an evaluation and a checkpoint take as long as they are large. Only torchrun has a limit.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    given = environment.get(_TORCHRUN_LIMIT, "")
    kills_s = float(given) if given.isdecimal() else _TORCHRUN_S
    return max(kills_s - _EARLIER_S, kills_s / 2)


class Signals:
    """Handlers of the signals that end a job. While workers start or end, they delay a signal."""

    def __init__(self) -> None:
        self._came: signal.Signals | None = None
        self._came_s = 0.0
        self._raised = False
        self._interrupted = False
        self._stop: StopRequest | None = None
        self._late: threading.Timer | None = None

    def __enter__(self) -> "Signals":
        nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        heard = [number for number in ENDING if not (nohup and number == signal.SIGHUP)]
        self._before = {number: signal.signal(number, self._hear) for number in heard}
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late.join()
        for number, handler in self._before.items():  # None is one of C code
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if not isinstance(error, KeyboardInterrupt):
            self._raise(error if self._is_own(error) else None)

    @contextmanager
    def raised(self, stop: StopRequest | None = None) -> Iterator[None]:
        """Inside, a signal raises KeyboardInterrupt; so does an earlier, delayed one.

        If workers obey `stop`, the first signal only asks them to stop. A second one raises, or the end of
        `stops_within_s`.
        """
        self._raised, self._stop = True, stop
        try:
            self._raise()
            yield
        finally:
            self._raised = False

    def _is_own(self, error: BaseException | None) -> bool:
        """Whether `error` is a failure of the job itself, such as a full disk, and not due to the signal.

        A signal to a process group also kills workers, and other ranks then lose them. After the signal has raised,
        errors are its consequences.
        """
        failed = isinstance(error, (UserError, RunFailed)) and not isinstance(error, WorkerLost)
        return failed and not self._interrupted

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if number == self._came and time.monotonic() < self._came_s + _SAME_S:
            return
        first, self._came, self._came_s = self._came is None, signal.Signals(number), time.monotonic()
        if self._raised and not (first and self._ask()):
            self._raise()

    def _ask(self) -> bool:
        """Ask the workers to stop; False if they cannot."""
        if self._stop is None or not self._stop.request():
            return False
        within_s = stops_within_s(os.environ)
        limit = "however long that takes" if within_s is None else f"within {within_s:g} s, before torchrun ends it"
        said = f"stopping after the next steps with a checkpoint, {limit}; a second signal ends the run at once\n"
        os.write(2, said.encode())  # the signal may have interrupted a print
        if within_s is not None:
            main = threading.main_thread().ident
            assert main is not None
            self._late = threading.Timer(within_s, signal.pthread_kill, (main, self._came))
            self._late.daemon = True
            self._late.start()
        return True

    def _raise(self, cause: BaseException | None = None) -> None:
        if self._came is not None:
            self._interrupted = True
            raise KeyboardInterrupt(self._came.name) from cause
