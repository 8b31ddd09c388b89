"""Destinations of steps, evaluations, notes and the result of a run. Only rank 0 has sinks."""

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from istbench.results.events import Event
from istbench.results.header import Result
from istbench.results.store import RunDirectory

_FORMAT = "<q"
_NAME = "step"


class Sink(Protocol):
    """A destination of the records of a run, in order. Only `step` runs on the train clock."""

    def step(self, done: int) -> None:
        """Local step number `done` is over. This runs on the clock, so it must take almost no time."""

    def record(self, event: Event) -> None:
        """Take an evaluation, a note or another event."""

    def finish(self, result: Result) -> None:
        """Take the result; the run is over."""


class RunFiles:
    """A sink that writes to the run directory."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    def step(self, done: int) -> None:
        """Do nothing: the run directory has no steps."""

    def record(self, event: Event) -> None:
        """Append to events.jsonl."""
        self._run.append(event)

    def finish(self, result: Result) -> None:
        """Write the result into the header."""
        self._run.update(result=result)


class StepCounter:
    """A sink that writes the last finished step to a file, which both sides map: it costs training nothing."""

    def __init__(self, directory: Path) -> None:
        path = directory / _NAME
        path.write_bytes(struct.pack(_FORMAT, 0))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), struct.calcsize(_FORMAT))

    def step(self, done: int) -> None:
        """Write that `done` steps are done."""
        struct.pack_into(_FORMAT, self._bytes, 0, done)

    def record(self, event: Event) -> None:
        """Do nothing."""

    def finish(self, result: Result) -> None:
        """Do nothing: the file has the last step."""


def read_step(directory: Path) -> int:
    """The last step that a `StepCounter` wrote in `directory`, 0 before the first."""
    try:
        return int(struct.unpack(_FORMAT, (directory / _NAME).read_bytes())[0])
    except (OSError, struct.error):
        return 0


class Sinks:
    """Several sinks as one; none on the ranks that only train."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def step(self, done: int) -> None:
        """Pass it to every sink."""
        for sink in self._sinks:
            sink.step(done)

    def record(self, event: Event) -> None:
        """Pass it to every sink."""
        for sink in self._sinks:
            sink.record(event)

    def finish(self, result: Result) -> None:
        """Pass it to every sink."""
        for sink in self._sinks:
            sink.finish(result)


def sinks_of_run(run: RunDirectory, scratch: Path) -> Sinks:
    """The sinks of a run: its directory, and `scratch` for its launcher. A new sink adds itself here."""
    return Sinks([RunFiles(run), StepCounter(scratch)])
