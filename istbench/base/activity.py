"""The activity and the steps of a worker, in a small file that its launcher reads. It costs training no time.

The file outlives a killed worker. `current` is the activity of this process.
"""

import mmap
import struct
import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")
_NUMBERS, _TEXT, _PROGRESS = struct.Struct("<qq??"), struct.Struct("80s"), struct.Struct("<qdd")
_PHASE_AT = _NUMBERS.size
_OPERATION_AT = _PHASE_AT + _TEXT.size
_PROGRESS_AT = _OPERATION_AT + _TEXT.size
_SIZE = _PROGRESS_AT + _PROGRESS.size


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


class Activity:
    """The activity of one worker. Its main thread writes; any thread may read.

    Attributes:
        ticks: as in `Record`.
    """

    def __init__(self) -> None:
        self._bytes: mmap.mmap | bytearray = bytearray(_SIZE)
        self.ticks, self._step, self._timed, self._waits = 0, -1, False, False
        self._longest, self._longest_s = "", 0.0
        self._phase = self._operation = ""
        self._began = 0.0
        self._write()

    def share(self, path: Path) -> None:
        """Write the activity to file `path` from now on, for `read_activity`.

        Raises:
            OSError: if the file cannot be written.
        """
        path.write_bytes(bytes(self._bytes))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), _SIZE)
        self._tick()

    def begin(self, phase: str, step: int = -1, *, timed: bool = False) -> None:
        """Begin `phase`, in local step `step`."""
        if phase != self._phase:
            self._phase = phase
            _TEXT.pack_into(self._bytes, _PHASE_AT, phase.encode())
        self._step, self._timed = step, timed
        self._tick()

    @contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """Inside, this worker waits for other ranks in `operation`."""
        before, self._waits = self._waits, True
        if operation != self._operation:
            self._operation = operation
            _TEXT.pack_into(self._bytes, _OPERATION_AT, operation.encode())
        self._tick()
        started = time.perf_counter()
        try:
            yield
        finally:
            waited_s = time.perf_counter() - started
            if waited_s > self._longest_s:
                self._longest, self._longest_s = operation, waited_s
            self._waits = before
            self._tick()

    def start(self) -> None:
        """Start to count steps."""
        self._began = time.time()
        self.finish(0)

    def finish(self, step: int) -> None:
        """Local step number `step` is over. Training calls it on its clock."""
        _PROGRESS.pack_into(self._bytes, _PROGRESS_AT, step, time.time(), self._began)

    def longest_wait(self) -> str:
        """The operation of the longest wait since the last call; empty without a wait."""
        longest, self._longest, self._longest_s = self._longest, "", 0.0
        return longest

    def timing(self, items: Iterable[T]) -> Iterator[T]:
        """Yield `items`. `--timeout` bounds the time that the worker spends on each."""
        try:
            for item in items:
                self._timed = True
                self._tick()
                yield item
        finally:
            self._timed = False
            self._tick()

    def look(self) -> Record:
        """The activity now."""
        return _record(self._bytes)

    def _tick(self) -> None:
        self.ticks += 1
        self._write()

    def _write(self) -> None:
        _NUMBERS.pack_into(self._bytes, 0, self.ticks, self._step, self._timed, self._waits)


current = Activity()


def read_activity(path: Path) -> Record | None:
    """The last activity in file `path`; None if there is none."""
    try:
        return _record(path.read_bytes())
    except (OSError, struct.error):
        return None


def _record(content: mmap.mmap | bytes | bytearray) -> Record:
    phase, operation = (_TEXT.unpack_from(content, at)[0] for at in (_PHASE_AT, _OPERATION_AT))
    ticks, step, timed, waits = _NUMBERS.unpack_from(content)
    progress = Progress(*_PROGRESS.unpack_from(content, _PROGRESS_AT))
    return Record(ticks, step, timed, waits, _text(phase), _text(operation), progress)


def _text(content: bytes) -> str:
    return content.rstrip(b"\0").decode(errors="ignore")


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
