"""The journal of one question: its rungs, its finished probes and the seconds spent, so that a command resumes."""

import hashlib
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from istbench.base.decode import decode_json, read_bytes
from istbench.base.files import append_line, require_no_link, write_errors
from istbench.base.options.numbers import Count, Duration, Seed
from istbench.base.options.texts import Message
from istbench.results.header import CellName
from istbench.studies.advise.halving import Rung

_Label = Annotated[str, Meta(min_length=1, max_length=4096)]


class RungStarted(msgspec.Struct, frozen=True, kw_only=True, tag="planned"):
    """A rung was about to start."""

    rung: Rung


class ProbeTrained(msgspec.Struct, frozen=True, kw_only=True, tag="trained"):
    """A probe of `label` finished as the cell named `cell`."""

    label: _Label
    steps: Count
    seed: Seed
    cell: CellName


class ProbeFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """A probe of `label` failed, for `reason`."""

    label: _Label
    steps: Count
    seed: Seed
    reason: Message


class StepRecorded(msgspec.Struct, frozen=True, kw_only=True, tag="recorded"):
    """Step one finished as the cell named `cell`."""

    cell: CellName


class SecondsSpent(msgspec.Struct, frozen=True, kw_only=True, tag="spent"):
    """A command on the question ended, or goes on; these are its seconds so far. command: a random name."""

    command: Annotated[str, Meta(max_length=100)]
    seconds: Duration


_Line = StepRecorded | RungStarted | ProbeTrained | ProbeFailed | SecondsSpent


@dataclass
class Journal:
    """The lines in `path`, as read at the start, and those that this command adds.

    Attributes:
        rungs: those so far. cells: names of finished probes by (label, steps, seed).
        failures: reasons of failed probes, by the same.
        recorded: name of the cell of step one; None before it has finished.
        spent: seconds so far by command. command: the name of this one. Containers repeat process ids.
    """

    path: Path
    rungs: list[Rung] = field(default_factory=list)
    cells: dict[tuple[str, int, int], str] = field(default_factory=dict)
    failures: dict[tuple[str, int, int], str] = field(default_factory=dict)
    recorded: str | None = None
    spent: dict[str, float] = field(default_factory=dict)
    command: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(cls, results: Path, question: Any) -> "Journal":
        """The journal of `question`, a JSON value, in results directory `results`.

        Raises:
            UserError: if it exists and is unreadable, or if its folder is a link.
        """
        digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:12]
        folder = require_no_link(results / "advise", "choose another --out")
        journal = cls(path=folder / f"{digest}.jsonl")
        journal._read()
        return journal

    @property
    def spent_s(self) -> float:
        """Seconds of all commands so far."""
        return sum(self.spent.values())

    def add(self, line: _Line) -> None:
        """Write `line`.

        Raises:
            UserError: if it cannot be written.
        """
        self._know(line)
        with write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, msgspec.json.encode(line))

    def spend(self, seconds: float) -> None:
        """Write the seconds of this command so far."""
        self.add(SecondsSpent(command=self.command, seconds=seconds))

    def _read(self) -> None:
        if not self.path.exists():
            return
        way_out = f"delete {self.path} to probe again; finished runs stay"
        content = read_bytes(self.path, "a journal of `istbench advise`")
        # The part after the last newline is empty, or torn by a crash.
        for number, text in enumerate(content.split(b"\n")[:-1], start=1):
            self._know(decode_json(text, _Line, f"{self.path}, line {number}", way_out))  # type: ignore[arg-type]

    def _know(self, line: _Line) -> None:
        if isinstance(line, RungStarted):
            self.rungs.append(line.rung)
        elif isinstance(line, ProbeTrained):
            self.cells[line.label, line.steps, line.seed] = line.cell
        elif isinstance(line, ProbeFailed):
            self.failures[line.label, line.steps, line.seed] = line.reason
        elif isinstance(line, StepRecorded):
            self.recorded = line.cell
        else:
            self.spent[line.command] = line.seconds
