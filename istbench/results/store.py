"""The run directory: `kill -9` at any moment, or a full disk, loses at most the line being written."""

import contextlib
import fcntl
import io
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from istbench.base.decode import decode_json, encode_json, read_bytes, regular_file
from istbench.base.errors import NoSpace, UserError, printable, shown
from istbench.base.files import append_line, is_full, kind_at, require_no_link, write_errors, writing_whole
from istbench.base.options.texts import message_of
from istbench.results.events import Evaluation, Event, Fault, Ready, Resume, Start, Stop
from istbench.results.header import SCHEMA, Header, Status, schema_of

MOST_EVENTS_BYTES, MOST_EVENTS = 2**27, 2**20
MOST_EVALUATIONS = 2**18
"""Evaluations that a cell may plan; with lines of 512 bytes they fill its events."""
_MOST_HEADER_BYTES = 2**22
_RESERVED_EVENTS_BYTES = 4096
_SPACE_S, _SPACE_POLL_S = 10.0, 0.1  # the wait for space on a full disk
_SHORTEST_EVENT = 30  # bytes of a line
_END_BYTES, _END_EVENTS = 2**18, 2**10  # kept for the ends of a run whose events are full, and for its resumptions


class OfAnotherCell(UserError):  # noqa: N818
    """File `path` is of cell `named`, and lies in the run directory of cell `there`."""

    def __init__(self, path: Path, named: str, there: str) -> None:
        super().__init__(
            f"{path} is of cell {printable(named)} and lies in the directory of {there}; move it back, or start "
            f"{there} from the beginning with --again"
        )


class RunDirectory:
    """The files of one run. Only this class knows their names.

    Attributes:
        run_json: the header: configuration, status, result. events_jsonl: a line of JSON for each event, appended.
        trace: recorded compute spans and transfers. checkpoint: the checkpoints of an unfinished run.
        logs: output of the workers. faults: those that `istbench faults` made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_json, self.events_jsonl = path / "run.json", path / "events.jsonl"
        self.trace, self.checkpoint, self.logs = path / "trace.npz", path / "checkpoint", path / "logs"
        self.faults, self._reserve = path / "faults.json", path / "reserve.tmp"
        self._counted = (0, 0)  # the size of the events, and their lines

    @classmethod
    def of(cls, results: Path, cell: str) -> "RunDirectory":
        """The run directory of the cell named `cell` in the directory `results`."""
        return cls(results / "runs" / cell)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other istbench writes this directory. The system frees the lock of a killed process.

        Raises:
            UserError: if another istbench holds the lock, or the directory cannot be written, or as
                `require_no_links`.
        """
        self.require_no_links()
        with write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"another istbench is running {self.path.name} in {self.path}; wait for it"
                ) from None
            yield
        finally:
            os.close(folder)

    def require_no_links(self) -> None:
        """Check that nothing here leads elsewhere: everything that writes a run directory checks it first.

        Raises:
            UserError: the directory is a link, or has one in the place of a file or a folder of istbench, or below
                `logs`, or its events are a hard link.
        """
        own = [self.run_json, self.events_jsonl, self.trace, self.checkpoint, self.logs, self.faults, self._reserve]
        with suppress(OSError):
            for step in os.scandir(self.checkpoint):
                own.append(Path(step))
                if step.is_dir(follow_symlinks=False):
                    own += map(Path, os.scandir(step))
        for path in (self.path.parent, self.path, *own):
            require_no_link(path, "choose another --out")
        for folder, folders, files in os.walk(self.logs):
            for name in (*folders, *files):
                require_no_link(Path(folder, name), "choose another --out")
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.lstat(self.events_jsonl).st_nlink > 1:
                raise UserError(
                    f"{self.events_jsonl} is a hard link, and istbench writes through none; "
                    "put a copy in its place, or choose another --out"
                )

    def clear(self) -> None:
        """Delete all files. The checkpoint and the header go first: the rest alone cannot look done.

        Raises:
            UserError: if one cannot be deleted.
        """
        if not self.path.is_dir():
            return
        order = {self.checkpoint: 0, self.run_json: 1}
        try:
            for path in sorted(self.path.iterdir(), key=lambda path: order.get(path, 2)):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        except OSError as error:
            what = error.filename or self.path
            raise UserError(
                f"cannot delete {what} to run the cell again: {error.strerror}; choose another --out"
            ) from None

    def exists(self) -> bool:
        """Whether a run ever started here.

        Raises:
            UserError: if this user may not read the directory.
        """
        return self._has(self.run_json)

    def is_done(self) -> bool:
        """Whether the run of this directory is done.

        Raises:
            UserError: as `exists` and `own_header`.
        """
        return self.exists() and self.own_header().status == "done"

    def create(self, header: Header) -> None:
        """Write `header` as run.json in one step. After a failure, the previous header stays.

        Raises:
            UserError: if the directory cannot be written.
        """
        content = msgspec.json.format(encode_json(header), indent=1) + b"\n"
        with _write_errors(self.run_json), writing_whole(self.run_json) as file:
            file.write(content)

    def reserve(self) -> None:
        """Reserve disk space in which a run on a full disk can record its end.

        Raises:
            UserError: if the disk has no such space.
        """
        size = self.run_json.stat().st_size + _RESERVED_EVENTS_BYTES
        self.free_reserve()
        # Random bytes, because some file systems store zeros without space.
        with _write_errors(self._reserve), writing_whole(self._reserve) as file:
            file.write(os.urandom(size))

    def free_reserve(self) -> None:
        with suppress(OSError):
            self._reserve.unlink(missing_ok=True)

    def header(self) -> Header:
        """The content of run.json.

        Raises:
            UserError: if it is missing, has another schema version, is incomplete or invalid, or is done without a
                result.
        """
        if not self.exists():
            raise UserError(f"no run in {self.path}: {self.run_json.name} is missing")
        content = read_bytes(self.run_json, "the header of a run", _MOST_HEADER_BYTES)
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
        header = decode_json(content, Header, str(self.run_json), self._way_out)
        if header.status == "done" and header.result is None:
            raise UserError(f"{self.run_json}: the run is done, but result is missing; {self._way_out}")
        return header

    def own_header(self) -> Header:
        """The header of a directory that has the name of its cell; others were copied or renamed.

        Call it before something is written for the run.

        Raises:
            UserError: as `header`. OfAnotherCell: the header names another cell.
        """
        header, name = self.header(), Path(os.path.abspath(self.path)).name  # noqa: PTH100  (a link keeps its name)
        if header.cell != name:
            raise OfAnotherCell(self.run_json, header.cell, name)
        return header

    def update(self, **fields: Any) -> None:
        """Change `fields` of the header, and keep the others.

        Raises:
            UserError: as `own_header` and `create` do.
        """
        self.create(msgspec.structs.replace(self.own_header(), **fields))

    def append(self, event: Event) -> None:
        """Append one line to events.jsonl, and return when it is on disk.

        A last line torn by a crash is cut off first. Readers ignore it anyway.

        Raises:
            UserError: if it cannot be written, or `events` would not read so many lines; earlier lines stay.
        """
        line = msgspec.json.encode(event)
        with _write_errors(self.events_jsonl):
            if not isinstance(event, Start | Resume | Ready | Fault | Stop):
                self._require_room(len(line) + 1)
            append_line(self.events_jsonl, line)

    def _require_room(self, size: int) -> None:
        """Check that a line of `size` bytes leaves a file that `events` reads."""
        with suppress(FileNotFoundError):
            there = self.events_jsonl.stat().st_size
            if there + size > MOST_EVENTS_BYTES - _END_BYTES or self._lines(there) + 1 > MOST_EVENTS - _END_EVENTS:
                raise UserError(
                    f"{self.events_jsonl} is full: a run has at most {MOST_EVENTS_BYTES:,} bytes of events and "
                    f"{MOST_EVENTS:,} lines; run it with a larger --eval-every"
                )

    def _lines(self, there: int) -> int:
        """The lines in the first `there` bytes of the events; 0 if even the shortest lines are few."""
        if there < (MOST_EVENTS - _END_EVENTS - 1) * _SHORTEST_EVENT:
            return 0
        known, lines = self._counted if self._counted[0] <= there else (0, 0)
        with regular_file(self.events_jsonl, "the events of a run", MOST_EVENTS_BYTES) as file:
            lines += os.pread(file, there - known, known).count(b"\n")
        self._counted = (there, lines)
        return lines

    def end(self, status: Status, error: str | None) -> None:
        """Record the end of the run, on a full disk in the reserved space.

        Raises:
            UserError: if the end of a finished run cannot be written.
        """

        def stop() -> Stop:
            evaluated = [0]
            with suppress(UserError):  # events that nobody can read must not keep a run from its end
                evaluated += [event.step for event in self.events() if isinstance(event, Evaluation)]
            return Stop(status=status, step=max(evaluated), time=time_now())

        self.free_reserve()
        steps: list[Callable[[], None]] = [
            lambda: self.append(Fault(message=error, time=time_now())) if error else None,
            lambda: self.append(stop()),
            lambda: self.update(status=status, error=message_of(error) if error else error, finished_at=time_now()),
        ]
        for step in steps:
            try:
                step()
            except UserError:
                if status == "done":
                    raise

    def events(self) -> list[Event]:
        """All events in order, without a torn last line.

        Raises:
            UserError: with the file and the line of any other broken event.
        """
        if not self._has(self.events_jsonl):
            return []
        content = read_bytes(self.events_jsonl, "the events of a run", MOST_EVENTS_BYTES)
        file, way_out, count = str(self.events_jsonl), self._way_out, content.count(b"\n")
        if count > MOST_EVENTS:
            raise UserError(f"{file} has {count:,} lines, more than the {MOST_EVENTS:,} of a run; {way_out}")
        # The part after the last newline is empty, or torn.
        lines = enumerate(itertools.islice(io.BytesIO(content), count), start=1)
        return [_event(line, f"{file}, line {number}", way_out) for number, line in lines]

    def _has(self, path: Path) -> bool:
        try:
            return bool(kind_at(path))
        except OSError as error:  # the directory belongs to another user
            way_out = f"make {self.path} readable, or choose another results directory"
            raise UserError(f"cannot read {path}: {error.strerror}; {way_out}") from None

    @property
    def _way_out(self) -> str:
        return f"delete {self.path} to run the cell again"


def _event(line: bytes, place: str, way_out: str) -> Event:
    event: Event = decode_json(line, Event, place, way_out)  # type: ignore[arg-type]
    return event


def time_now() -> str:
    """The current time in the format of headers and events."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def wait_for_space(act: Callable[[], None]) -> float:
    """Call `act`, again for some seconds while the disk is full; returns the seconds until it had space.

    Raises:
        NoSpace: if the disk stays full.
    """
    began, waited_s = time.monotonic(), 0.0
    while True:
        try:
            act()
        except NoSpace:
            if waited_s > _SPACE_S:
                raise
            time.sleep(_SPACE_POLL_S)
            waited_s = time.monotonic() - began
        else:
            return waited_s


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise NoSpace(
                f"no space left to write {path}: free some, then run the same command again to resume; "
                "nothing recorded is lost"
            ) from None
        raise UserError(
            f"cannot write {path}: {error.strerror}; fix this and run the same command again, or choose another "
            "--out"
        ) from None
