"""What a worker does now, in a few bytes of a file that its launcher reads too: no cost to training.

The bytes outlive a worker that is killed. `current` is the activity of this process.
"""

import mmap
import struct
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
_FORMAT = struct.Struct("<qq??94s80s")


class Record(NamedTuple):
    """One look at an activity.

    Attributes:
        ticks: rises with everything that the worker begins or ends.
        step: the local step that `phase` is about, -1 for none.
        timed: whether the worker is in a step, or in one batch of an evaluation, which `--timeout` bounds.
        waits: whether the worker waits for others in `operation`, which the fabric bounds.
        phase: such as "computing training step"; empty where nobody said.
    """

    ticks: int
    step: int
    timed: bool
    waits: bool
    phase: str
    operation: str

    def __str__(self) -> str:
        where = self.phase if self.step < 0 else f"{self.phase} {self.step}"
        return f"{where} (operation: {self.operation})" if self.waits and self.operation else where


class Activity:
    """The activity of one worker. Its main thread writes; any thread may look."""

    def __init__(self) -> None:
        self._bytes: mmap.mmap | bytearray = bytearray(_FORMAT.size)
        self._now = Record(0, -1, False, False, "", "")

    def share(self, path: Path) -> None:
        """Keep the activity in file `path` from now on, for `read_activity`.

        Raises:
            OSError: where the file cannot be written.
        """
        path.write_bytes(_pack(self._now))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), _FORMAT.size)

    def begin(self, phase: str, step: int = -1, *, timed: bool = False) -> None:
        """Say that `phase` begins, of local step `step`."""
        self._set(phase=phase, step=step, timed=timed)

    @contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """Inside, this worker waits for others in `operation`."""
        before = self._now
        self._set(waits=True, operation=operation)
        try:
            yield
        finally:
            self._set(waits=before.waits, operation=before.operation)

    def timing(self, items: Iterable[T]) -> Iterator[T]:
        """Yield `items`; until the last one is used, `--timeout` bounds the time between two of them."""
        try:
            for item in items:
                self._set(timed=True)
                yield item
        finally:
            self._set(timed=False)

    def look(self) -> Record:
        """The activity now."""
        return self._now

    def _set(self, **changes: Any) -> None:
        self._now = self._now._replace(ticks=self._now.ticks + 1, **changes)
        self._bytes[:] = _pack(self._now)


current = Activity()


def read_activity(path: Path) -> Record | None:
    """The activity last kept in file `path`; None where there is none."""
    try:
        ticks, step, timed, waits, phase, operation = _FORMAT.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return Record(ticks, step, timed, waits, _text(phase), _text(operation))


def _pack(record: Record) -> bytes:
    texts = record.phase.encode(), record.operation.encode()
    return _FORMAT.pack(record.ticks, record.step, record.timed, record.waits, *texts)


def _text(content: bytes) -> str:
    return content.rstrip(b"\0").decode(errors="ignore")


class Unchanged:
    """Seconds for which each of several values has stayed the same, as seen by one who looks again and again.

    No more than `longest_look_s` counts between two looks: a looker that was stopped meanwhile has seen nothing.
    """

    def __init__(self, longest_look_s: float) -> None:
        self._longest_look_s = longest_look_s
        self._seen: dict[Hashable, tuple[object, float, float]] = {}

    def seconds(self, key: Hashable, value: object, now: float) -> float:
        """Seconds for which `value` has been that of `key`; `now` is a monotonic time."""
        before, looked, seconds = self._seen.get(key, (value, now, 0.0))
        seconds = seconds + min(now - looked, self._longest_look_s) if value == before else 0.0
        self._seen[key] = (value, now, seconds)
        return seconds
