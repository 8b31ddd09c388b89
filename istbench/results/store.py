"""The run directory: `kill -9` at any moment, or a full disk, loses at most the line being written."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from istbench.door import decode_json, encode_own, read_bytes
from istbench.errors import UserError, shown
from istbench.files import sync, writing_whole
from istbench.results.events import Evaluation, Event, Fault, Stop
from istbench.results.header import SCHEMA, Header, Status, schema_of

_MOST_EVENTS_BYTES = 2**30
_RESERVED_EVENTS_BYTES = 4096


class RunDirectory:
    """One run's files, and the only place that knows their names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, results: Path, cell: str) -> "RunDirectory":
        """The run directory of the cell named `cell` in the directory `results`."""
        return cls(results / "runs" / cell)

    @property
    def run_json(self) -> Path:
        """The header: configuration, status, result."""
        return self.path / "run.json"

    @property
    def events_jsonl(self) -> Path:
        """One JSON line an event, appended."""
        return self.path / "events.jsonl"

    @property
    def trace(self) -> Path:
        """Recorded compute spans and transfers."""
        return self.path / "trace.npz"

    @property
    def checkpoint(self) -> Path:
        """What an unfinished run resumes from."""
        return self.path / "checkpoint"

    @property
    def logs(self) -> Path:
        """Output of the workers."""
        return self.path / "logs"

    def exists(self) -> bool:
        """Whether a run was ever started here.

        Raises:
            UserError: where this user may not look.
        """
        return self._has(self.run_json)

    def create(self, header: Header) -> None:
        """Write `header` as run.json, whole or not at all: where it fails, the header before stays.

        Raises:
            UserError: where the directory cannot be written.
        """
        content = msgspec.json.format(msgspec.json.encode(header, enc_hook=encode_own), indent=1) + b"\n"
        try:
            with writing_whole(self.run_json) as file:
                file.write(content)
        except OSError as error:
            raise _cannot_write(self.run_json, error) from None

    def reserve(self) -> None:
        """Take the space that writing how the run ended needs, so that a full disk does not prevent it.

        Raises:
            UserError: where there is no such space.
        """
        size = self.run_json.stat().st_size + _RESERVED_EVENTS_BYTES
        try:
            # No zeros: some file systems give those no space.
            self._reserve.write_bytes(os.urandom(size))
            sync(self._reserve)
        except OSError as error:
            self.free_reserve()
            raise _cannot_write(self._reserve, error) from None

    def free_reserve(self) -> None:
        """Give back what `reserve` took."""
        with suppress(OSError):
            self._reserve.unlink(missing_ok=True)

    @property
    def _reserve(self) -> Path:
        return self.path / "reserve.tmp"

    def header(self) -> Header:
        """What run.json holds.

        Raises:
            UserError: where it is missing, of another schema version, or lacks or says something impossible.
        """
        if not self.exists():
            raise UserError(f"no run in {self.path}: {self.run_json.name} is missing")
        content = read_bytes(self.run_json, "the header of a run")
        try:
            found = schema_of(content)
        except ValueError as error:
            raise UserError(f"{self.run_json}: {error}; {self._way_out}") from None
        if found != SCHEMA:
            said = "names no schema" if found is None else f"has schema {shown(found)}"
            raise UserError(
                f"{self.run_json} {said}, this istbench reads {SCHEMA}; "
                "use the istbench that wrote it, or another --out"
            )
        return decode_json(content, Header, str(self.run_json), self._way_out)

    def update(self, **fields: Any) -> None:
        """Change `fields` of the header, and keep the others.

        Raises:
            UserError: as `header` and `create` do.
        """
        self.create(msgspec.structs.replace(self.header(), **fields))

    def append(self, event: Event) -> None:
        """Add one line to events.jsonl, on disk when this returns.

        A last line that a crash has torn is cut off first: readers have ignored it from the start.

        Raises:
            UserError: where it cannot be written; what was recorded before stays.
        """
        line = msgspec.json.encode(event) + b"\n"
        try:
            descriptor = os.open(self.events_jsonl, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                size = _cut_torn_line(descriptor)
                if os.write(descriptor, line) != len(line):
                    os.ftruncate(descriptor, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if size == 0:
                sync(self.path)
        except OSError as error:
            raise _cannot_write(self.events_jsonl, error) from None

    def end(self, status: Status, error: str | None) -> None:
        """Record how the run ended, on a full disk in the space that `reserve` took.

        Raises:
            UserError: where the end of a run that is done cannot be written.
        """

        def stop() -> Stop:
            evaluated = [event.step for event in self.events() if isinstance(event, Evaluation)]
            return Stop(status=status, step=max(evaluated, default=0), time=time_now())

        self.free_reserve()
        steps: list[Callable[[], None]] = [
            lambda: self.append(Fault(message=error, time=time_now())) if error else None,
            lambda: self.append(stop()),
            lambda: self.update(status=status, error=error, finished_at=time_now()),
        ]
        for step in steps:
            try:
                step()
            except UserError:
                if status == "done":
                    raise

    def events(self) -> list[Event]:
        """All events in order; a torn last line is left out.

        Raises:
            UserError: naming the file and the line of any other broken one.
        """
        if not self._has(self.events_jsonl):
            return []
        lines = read_bytes(self.events_jsonl, "the events of a run", _MOST_EVENTS_BYTES).split(b"\n")
        # What follows the last newline is empty, or torn.
        return [self._event(line, number) for number, line in enumerate(lines[:-1], start=1)]

    def _has(self, path: Path) -> bool:
        try:
            return path.exists()
        except OSError as error:  # of a directory that is another user's
            way_out = f"make {self.path} readable, or choose another results directory"
            raise UserError(f"cannot read {path}: {error.strerror}; {way_out}") from None

    def _event(self, line: bytes, number: int) -> Event:
        event: Event = decode_json(line, Event, f"{self.events_jsonl}, line {number}", self._way_out)  # type: ignore[arg-type]
        return event

    @property
    def _way_out(self) -> str:
        return f"delete {self.path} to run it anew"


def time_now() -> str:
    """The time as headers and events have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cut_torn_line(descriptor: int) -> int:
    """Cut off what follows the last newline; returns the size of the file that is left."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    whole = os.pread(descriptor, size, 0).rfind(b"\n") + 1
    os.ftruncate(descriptor, whole)
    return whole


def _cannot_write(path: Path, error: OSError) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            f"no space left to write {path}: free some, then run the same command again to resume; "
            "nothing recorded is lost"
        )
    return UserError(f"cannot write {path}: {error.strerror}; mend that and run the same command again, "
                     "or choose another --out")  # fmt: skip
