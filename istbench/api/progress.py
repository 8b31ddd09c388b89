"""Progress on stderr while cells run: bars on a terminal, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from istbench.base.errors import UserError, clipped, printable, printable_lines
from istbench.base.scratch import scratch_folder
from istbench.base.threads import thread_beside
from istbench.base.units import clock
from istbench.launch.processes.failures import read_progress
from istbench.results.curves import Curve
from istbench.results.events import Event, Note, Resume
from istbench.results.header import Header
from istbench.results.metrics import Metric, value_text
from istbench.results.store import RunDirectory

_POLL_S = 0.2
_PLAIN_LINE_S = 15.0
_NARROW = 80


class Display:
    """Progress of preparing data and of training, on stderr. A `quiet` one shows only urgent notes of a run.

    words: changes the words of notes, such as `in_python`.
    """

    def __init__(self, *, quiet: bool = False, words: Callable[[str], str] = str) -> None:
        self._quiet, self._words = quiet, words
        self._console = Console(stderr=True, emoji=False, highlight=False, force_jupyter=False)
        self._live = self._console.is_terminal
        wide = [BarColumn(bar_width=24), TimeElapsedColumn()] if self._console.width > _NARROW else []
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            *wide,
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=self._console,
            transient=True,
            disable=quiet or not self._live,
        )
        self._preparing: dict[str, Any] = {}
        self._last_plain = 0.0
        self.place = ""
        """The place of the next run among all, such as `cell 2 of 3`."""

    def __enter__(self) -> "Display":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def note(self, text: str) -> None:
        """Print one line that stays on the screen; print nothing for an empty text."""
        if text and not self._quiet:
            self._print(text)

    def _print(self, text: str) -> None:
        # A terminal wraps words; a file keeps each line whole.
        self._console.print(printable_lines(self._words(text)), markup=False, soft_wrap=not self._live)

    def preparing(self, what: str, done: int, total: int) -> None:
        """A `ShowProgress` callback for `Workload.prepare`."""
        what = printable(what)
        if not self._live:
            self._plain(f"{what}: {done}/{total}", due=done in (0, total))
            return
        if what not in self._preparing:
            self._preparing[what] = self._bars.add_task(what, state="")
        self._bars.update(self._preparing[what], completed=done, total=total)
        if done >= total:
            self._bars.remove_task(self._preparing.pop(what))

    @contextmanager
    def training(self, header: Header, run: RunDirectory) -> Iterator[Path]:
        """Show the progress of `run` until the block ends; yields its scratch directory."""
        total = header.config.steps
        name = f"{header.method_label} n={header.nodes} seed {header.seed}, {header.workload_label}"
        name = printable(f"{self.place}: {name}" if self.place else name)
        # The figures beside the name stay whole on a narrow terminal.
        task = self._bars.add_task(clipped(name, self._console.width // 3), total=total, state="starting")
        over = threading.Event()

        def watch(scratch: Path) -> None:
            seen, state, told = -1, "starting", len(_urgent(_events(run)))
            first: tuple[int, float] | None = None  # a step and its time: a resumed run begins at a later step
            while not over.wait(_POLL_S):
                # A smaller group takes more local steps for the same samples.
                step, size = min(read_progress(scratch).step, total), _size(run.events_jsonl)
                if size != seen:
                    seen, events = size, _events(run)
                    state = printable(_state(events, header.own_metric))
                    told = self._tell(_urgent(events), told)
                self._bars.update(task, completed=step, state=state)
                if not self._live:
                    now = time.monotonic()
                    if first is None and step:
                        first = step, now
                    left = ""
                    if first is not None and step > first[0]:
                        left = f", {clock((now - first[1]) * (total - step) / (step - first[0]))} left"
                    figures = f": step {step}/{total}{left}, {state}"
                    self._plain(f"{clipped(name, _NARROW - len(figures))}{figures}")
            self._tell(_urgent(_events(run)), told)

        with scratch_folder() as scratch:
            try:
                with thread_beside(partial(watch, scratch), over):
                    yield scratch
            finally:
                self._bars.remove_task(task)

    def _tell(self, lines: list[str], told: int) -> int:
        """Print the `lines` after the first `told`; returns the number of all lines."""
        for line in lines[told:]:
            self._print(line)
        return len(lines)

    def _plain(self, line: str, due: bool = False) -> None:
        now = time.monotonic()
        if not self._quiet and (due or now - self._last_plain >= _PLAIN_LINE_S):
            self._last_plain = now
            print(line, file=sys.stderr, flush=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _events(run: RunDirectory) -> list[Event]:
    """Those so far; none while nobody can read them."""
    try:
        return run.events()
    except (OSError, UserError):
        return []


def _urgent(events: Iterable[Event]) -> list[str]:
    """The messages of the run about losses, damaged checkpoints and lost sinks."""
    said: list[str] = []
    for event in events:
        if isinstance(event, Resume) and (event.loss or event.resize):
            said.append(_goes_on(event))
        said.append(event.damage if isinstance(event, Resume) else "")
        said.append(event.message if isinstance(event, Note) and event.urgent else "")
    return [line for line in said if line]


def _goes_on(event: Resume) -> str:
    """The cause for which a run started again by itself, and the nodes that go on."""
    change, step = event.resize, max(0, event.step)
    if change is None:
        return f"{event.loss.cause if event.loss else ''}; all nodes start again from step {step}"
    nodes = "1 node goes" if change.after == 1 else f"{change.after} nodes go"
    return f"{change.cause}; {nodes} on from step {step}, not {change.before}"


def _state(events: Iterable[Event], metric: Metric) -> str:
    """The last evaluation, with its step: training may be far ahead of it. At most 40 characters or so."""
    evaluations = Curve.from_events(events, metric).evaluations
    if not evaluations:
        return "starting"
    last = evaluations[-1]
    value = last.metrics.get(metric.name)
    loss = f", loss {last.train_loss:.3f}" if last.train_loss is not None else ""
    return f"{metric.name} {'not a number' if value is None else value_text(value, 4)}{loss} at {last.step}"
