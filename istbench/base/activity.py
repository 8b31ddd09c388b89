"""The activity and the steps of a worker, in a small file that its launcher reads. It costs training no time.

The file outlives a killed worker. `current` is the activity of this process.
"""

import ctypes
import mmap
import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")
_LONGEST_TEXT = 80  # bytes


class Progress(NamedTuple):
    """The last finished local step, 0 before the first; its time, and that of the start, in seconds since 1970."""

    step: int = 0
    at: float = 0.0
    began: float = 0.0


class Record(NamedTuple):
    """A snapshot of an activity.

    Attributes:
        ticks: a counter that rises whenever the worker begins or ends something.
        step: the local step of `phase`, -1 for none.
        timed: whether `--timeout` bounds the work: a training step, or one batch of an evaluation.
        waits: whether the worker waits for other ranks in `operation`. The fabric bounds that wait.
        phase: for example "computing training step"; may be empty.
        progress: of training; zeros before its start.
    """

    ticks: int
    step: int
    timed: bool
    waits: bool
    phase: str
    operation: str
    progress: Progress

    def __str__(self) -> str:
        where = self.phase if self.step < 0 else f"{self.phase} {self.step}"
        return f"{where} (operation: {self.operation})".strip() if self.waits and self.operation else where


class _Layout(ctypes.Structure):
    """The file, in memory that a worker writes."""

    _fields_ = (
        ("ticks", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("timed", ctypes.c_bool),
        ("waits", ctypes.c_bool),
        ("phase", ctypes.c_char * _LONGEST_TEXT),
        ("operation", ctypes.c_char * _LONGEST_TEXT),
        ("done", ctypes.c_int64),
        ("done_at", ctypes.c_double),
        ("began", ctypes.c_double),
    )

    def record(self) -> Record:
        phase, operation = (text.decode(errors="ignore") for text in (self.phase, self.operation))
        progress = Progress(self.done, self.done_at, self.began)
        return Record(self.ticks, self.step, self.timed, self.waits, phase, operation, progress)


class Activity:
    """The activity of one worker. Its main thread writes; any thread may read."""

    def __init__(self) -> None:
        self._now = _Layout(step=-1)
        self._longest, self._longest_s = "", 0.0

    @property
    def ticks(self) -> int:
        """As in `Record`."""
        return int(self._now.ticks)

    def share(self, path: Path) -> None:
        """Write the activity to file `path` from now on, for `read_activity`.

        Raises:
            OSError: if the file cannot be written.
        """
        path.write_bytes(bytes(self._now))
        with path.open("r+b") as file:
            self._now = _Layout.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(_Layout)))
        self._now.ticks += 1

    def begin(self, phase: str, step: int = -1, *, timed: bool = False) -> None:
        self._now.phase = phase.encode()[:_LONGEST_TEXT]
        self._now.step, self._now.timed = step, timed
        self._now.ticks += 1

    @contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """Inside, this worker waits for other ranks in `operation`."""
        before = self._now.waits
        self._now.operation = operation.encode()[:_LONGEST_TEXT]
        self._now.waits = True
        self._now.ticks += 1
        started = time.perf_counter()
        try:
            yield
        finally:
            waited_s = time.perf_counter() - started
            if waited_s > self._longest_s:
                self._longest, self._longest_s = operation, waited_s
            self._now.waits = before
            self._now.ticks += 1

    def start(self) -> None:
        """Start to count steps."""
        self._now.began = time.time()
        self.finish(0)

    def finish(self, step: int) -> None:
        """Local step number `step` is over. Training calls it on its clock."""
        self._now.done, self._now.done_at = step, time.time()

    def longest_wait(self) -> str:
        """The operation of the longest wait since the last call; empty without a wait."""
        longest, self._longest, self._longest_s = self._longest, "", 0.0
        return longest

    def timing(self, items: Iterable[T]) -> Iterator[T]:
        """Yield `items`. `--timeout` bounds the time that the worker spends on each."""
        try:
            for item in items:
                self._now.timed = True
                self._now.ticks += 1
                yield item
        finally:
            self._now.timed = False
            self._now.ticks += 1

    def look(self) -> Record:
        return self._now.record()


current = Activity()


def read_activity(path: Path) -> Record | None:
    """The last activity in file `path`; None if there is none."""
    try:
        return _Layout.from_buffer_copy(path.read_bytes()).record()
    except (OSError, ValueError):
        return None


class Unchanged:
    """Counts for how many seconds each of several values has not changed. The caller polls it.

    Between two polls at most `longest_look_s` seconds count, since the polling process may have been stopped.
    """

    def __init__(self, longest_look_s: float) -> None:
        self._longest_look_s = longest_look_s
        self._seen: dict[Hashable, tuple[object, float, float]] = {}

    def seconds(self, key: Hashable, value: object, now: float) -> float:
        """Seconds since the value of `key` changed to `value`; `now` is a monotonic time."""
        before, looked, seconds = self._seen.get(key, (value, now, 0.0))
        seconds = seconds + min(now - looked, self._longest_look_s) if value == before else 0.0
        self._seen[key] = (value, now, seconds)
        return seconds
