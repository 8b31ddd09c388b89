"""Destinations of evaluations, notes and the result of a run. Only rank 0 has them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from istbench.base.errors import NoSpace, printable
from istbench.base.threads import answer_by
from istbench.node.registry import load_sink
from istbench.node.sinks.base import default_place
from istbench.node.stopping import END
from istbench.results.curves import Curve
from istbench.results.events import Evaluation, Event, Note, Resume, Start
from istbench.results.header import Result, Status
from istbench.results.store import RunDirectory, wait_for_space

if TYPE_CHECKING:
    from istbench.node.sinks.base import EvaluationSink

_LONGEST_S = 30.0  # until the run goes on without a sink that does not return


class Destination:
    """A destination of the records of a run, in order, which takes nothing of them itself."""

    def record(self, event: Event) -> None:
        """Take an evaluation, a note or another event."""

    def finish(self, result: Result) -> None:
        """Take the result; the run is over."""

    def close(self, status: Status) -> None:
        """Take the end of this process's part of the run, as `done`, `failed` or `interrupted`."""


class RunFiles(Destination):
    """Writes to the run directory. The launcher records how the run ends.

    On a full disk the run waits for space, as `wait_for_space` does.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    def record(self, event: Event) -> None:
        if waited_s := wait_for_space(lambda: self._run.append(event)):
            said = f"the disk of {self._run.path} was full; the run waited {waited_s:.1f} s"
            with suppress(NoSpace):
                self._run.append(Note(message=printable(said), urgent=True))

    def finish(self, result: Result) -> None:
        wait_for_space(lambda: self._run.update(result=result))


class RequestedSink(Destination):
    """The sink that the user requested by `text`, NAME or NAME=WHERE, for the evaluations of `run`.

    It begins with the first evaluation. After a resume it first gets the evaluations that the run kept. If it
    raises or hangs, a note says so, and the run goes on without it.
    """

    def __init__(self, text: str, run: RunDirectory) -> None:
        self._text, self._run = text, run
        self._sink: EvaluationSink | None = None
        self._lost = False

    def record(self, event: Event) -> None:
        if isinstance(event, Evaluation):
            self._try(lambda: self._pass_on(event))

    def close(self, status: Status) -> None:
        sink = self._sink
        if sink is not None:
            self._try(lambda: sink.close(status))

    def _pass_on(self, evaluation: Evaluation) -> None:
        if self._sink is None:
            header, events = self._run.own_header(), self._run.events()
            self._sink = load_sink(self._text)(header, place_of(self._text, self._run), _resumed_at(events))
            for kept in Curve.from_events(events, header.own_metric).evaluations:
                if kept.step < evaluation.step:
                    self._sink.evaluation(kept)
        self._sink.evaluation(evaluation)

    def _try(self, act: Callable[[], None]) -> None:
        if self._lost:
            return
        answer: Future[None] = Future()
        threading.Thread(target=answer_by, args=(act, answer), daemon=True).start()
        try:
            error = answer.exception(_LONGEST_S)  # a library may even exit
        except TimeoutError:
            error = TimeoutError(f"it did not return within {_LONGEST_S:g} s")
        if error is not None:
            self._lost = True
            why = f"{type(error).__name__}: {error}"
            self._run.append(
                Note(message=printable(f"sink {self._text}: {why}; the run goes on without it"), urgent=True)
            )


def place_of(text: str, run: RunDirectory) -> str:
    """The place of the sink in the `text` of `--sink` for `run`: as typed, or a directory for all runs beside it.

    Raises:
        UserError: as `default_place`.
    """
    name, _, where = (part.strip() for part in text.partition("="))
    return where or str(default_place(run.path.parent.parent, name, f"name another place: --sink {name}=WHERE"))


def _resumed_at(events: Sequence[Event]) -> int | None:
    """The step from which the run went on last, 0 without a checkpoint; None if it has just started."""
    last = next((event for event in reversed(events) if isinstance(event, Start | Resume)), None)
    return max(0, last.step) if isinstance(last, Resume) else None


class Destinations:
    """Several destinations as one; none on the ranks that only train.

    As a context it closes them: the run is done if it had a result, failed after an error, else interrupted.
    """

    def __init__(self, destinations: Sequence[Destination]) -> None:
        self._destinations = tuple(destinations)
        self._status: Status = "interrupted"
        self._lock, self._closed = threading.Lock(), False

    def __enter__(self) -> "Destinations":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close("failed" if kind is not None else self._status)

    def _close(self, status: Status) -> None:
        """Close every destination, the first time; a second call waits for the first."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for one in self._destinations:
                    one.close(status)

    @contextmanager
    def closed_at_end(self, status: Callable[[], Status]) -> Iterator[None]:
        """Inside, `END` closes the destinations with `status()` and ends this process. Only for the main thread.

        The launcher sends `END` to this worker when another one fails. The main thread may then wait for that one
        inside C code, which runs no handler of Python. So a thread closes the destinations: the system's part of
        the handler wakes it through a pipe.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)

        def close() -> None:
            while number := os.read(reading, 1):
                if number[0] == END:
                    self._close(status())
                    os._exit(128 + END)
            os.close(reading)

        threading.Thread(target=close, name="end signal", daemon=True).start()
        os.register_at_fork(after_in_child=_end_at_once)
        before = signal.signal(END, lambda *_: None)
        woken = signal.set_wakeup_fd(writing)
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
            signal.signal(END, before)
            os.close(writing)

    def record(self, event: Event) -> None:
        """Pass it to every destination, unless they are closed."""
        with self._lock:
            if not self._closed:
                for one in self._destinations:
                    one.record(event)

    def finish(self, result: Result) -> None:
        for one in self._destinations:
            one.finish(result)
        self._status = "done"


def _end_at_once() -> None:
    """In a process that a plug-in forks: `END` ends it, and does not wake the thread of its parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(END, signal.SIG_DFL)
