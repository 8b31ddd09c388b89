"""Where evaluations, and what else a run tells while it trains, go. Only rank 0 has sinks."""

from collections.abc import Sequence
from typing import Protocol

from istbench.results.events import Event
from istbench.results.header import Result
from istbench.results.store import RunDirectory


class Sink(Protocol):
    """Something that hears of a run's course, in order. What it does is off the train clock, but for `step`."""

    def step(self, done: int) -> None:
        """Local step number `done` is over. On the clock: it must take no time to speak of."""

    def record(self, event: Event) -> None:
        """There was an evaluation, or the method has a note."""

    def finish(self, result: Result) -> None:
        """The run is over, and this came of it."""


class RunFiles:
    """The run directory, as a sink."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    def step(self, done: int) -> None:
        """Nothing: steps are not kept."""

    def record(self, event: Event) -> None:
        """Append to events.jsonl."""
        self._run.append(event)

    def finish(self, result: Result) -> None:
        """Write the result into the header."""
        self._run.update(result=result)


class Sinks:
    """Several sinks as one; none on the nodes that only train."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def step(self, done: int) -> None:
        """Tell every sink."""
        for sink in self._sinks:
            sink.step(done)

    def record(self, event: Event) -> None:
        """Tell every sink."""
        for sink in self._sinks:
            sink.record(event)

    def finish(self, result: Result) -> None:
        """Tell every sink."""
        for sink in self._sinks:
            sink.finish(result)
