"""The run directory: `kill -9` at any moment, or a full disk, loses at most the line being written."""

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

from istbench.errors import UserError
from istbench.files import sync

SCHEMA = 1
TIMING_RULE = 1


class RunDirectory:
    """One run's files, and the only place that knows their names.

    Numbers that JSON lacks (NaN, infinity) are written as null; in the metrics of an event they come back
    as NaN, so that a diverged run stays readable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

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
        """Whether a run was ever started here."""
        return self.run_json.exists()

    def create(self, header: dict[str, Any]) -> None:
        """Write `header` as run.json, whole or not at all: where it fails, the header before stays.

        Raises:
            UserError: where the directory cannot be written.
        """
        text = json.dumps(_json_ready(header), indent=1, allow_nan=False) + "\n"
        temporary = self.run_json.with_suffix(".json.tmp")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self.run_json)
            finally:
                temporary.unlink(missing_ok=True)
            sync(self.path)
        except OSError as error:
            raise _cannot_write(self.run_json, error) from None

    def header(self) -> dict[str, Any]:
        """What run.json holds.

        Raises:
            UserError: where it is missing, not JSON, or of another schema version.
        """
        try:
            header = json.loads(self.run_json.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"no run in {self.path}: {self.run_json.name} is missing") from None
        except OSError as error:
            raise UserError(f"cannot read {self.run_json}: {error.strerror}") from None
        except ValueError as error:
            raise UserError(f"{self.run_json} is not JSON ({error}); delete {self.path} to run it anew") from None
        found = header.get("schema") if isinstance(header, dict) else None
        if not isinstance(header, dict) or found != SCHEMA:
            raise UserError(
                f"{self.run_json} has schema {found}, this istbench reads {SCHEMA}; "
                "use the istbench that wrote it, or another --out"
            )
        return header

    def update(self, **fields: Any) -> None:
        """Change `fields` of the header, and keep the others.

        Raises:
            UserError: as `header` and `create` do.
        """
        self.create({**self.header(), **fields})

    def append(self, event: dict[str, Any]) -> None:
        """Add one line to events.jsonl, on disk when this returns.

        A last line that a crash has torn is cut off first: readers have ignored it from the start.

        Raises:
            UserError: where it cannot be written; what was recorded before stays.
        """
        line = json.dumps(_json_ready(event), allow_nan=False).encode() + b"\n"
        try:
            descriptor = os.open(self.events_jsonl, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
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

    def events(self) -> list[dict[str, Any]]:
        """All events in order; a torn last line is left out.

        Raises:
            UserError: naming the file and the line of any other broken one.
        """
        try:
            lines = self.events_jsonl.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"cannot read {self.events_jsonl}: {error.strerror}") from None
        # What follows the last newline is empty, or torn.
        return [self._event(line, number) for number, line in enumerate(lines[:-1], start=1)]

    def _event(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            event = json.loads(line)
        except ValueError as error:
            reason = str(error)
        else:
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                return _with_nan_metrics(event)
            reason = "not an event"
        raise UserError(f"{self.events_jsonl}, line {number}: {reason}; delete {self.path} to run it anew")


def _json_ready(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_ready(item) for item in value]
    return value


def _with_nan_metrics(event: dict[str, Any]) -> dict[str, Any]:
    metrics = event.get("metrics")
    if isinstance(metrics, dict):
        event["metrics"] = {name: math.nan if value is None else value for name, value in metrics.items()}
    return event


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
