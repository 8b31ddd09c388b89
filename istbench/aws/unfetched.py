"""Runs on the machines of a cluster that are not on this computer, or not as far."""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from istbench.aws.access import last_line, on_machine
from istbench.aws.local_files import LocalFiles
from istbench.aws.machines import Machine
from istbench.base.errors import RunFailed, UserError
from istbench.results.store import RunDirectory

# A line for each file: SHA-256, bytes, path. `sed` leaves out the directory of weights, which is another one here.
_LIST_RUNS = (
    r"find . -path ./.cache -prune -o -path '*/runs/*' \( -name run.json -o -name events.jsonl \) -exec sh -c "
    """'for file; do echo "$(sed "/^  .save.: /d" < "$file" | sha256sum | cut -c -64) """
    """$(stat -c %s "$file") $file"; done' sh {} +"""
)
# A line for each file of weights of --save: istbench deletes them there after it has copied them.
_LIST_SAVED = (
    "find . -path ./.cache -prune -o "
    r"-type f -path '*/saved/*-????????/model*.safetensors' -printf 'saved %h\n'"
)
# A line for each job of --detach that works: its process holds a lock on its directory.
_LIST_JOBS = (
    'for job in "${ISTBENCH_CACHE:-.cache/istbench}"/detached/*/; do '
    'if test -d "$job" && ! flock --nonblock "$job" true; then echo "works $job"; fi; done'
)
_WORKS, _SAVED = "works ", "saved "
_HEADER, _EVENTS = "run.json", "events.jsonl"


@dataclass
class _RunThere:
    """A run directory on a machine: the SHA-256 and bytes of its files, by name."""

    path: str
    files: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def cell(self) -> str:
        return PurePosixPath(self.path).name


def unfetched(files: LocalFiles, machines: Sequence[Machine], out: Path) -> list[str]:
    """A line for each run on `machines` that still trains, or that no results directory at or below `out` has.

    Also a line for the cells that --detach left on a machine, and for each directory of weights there.

    Raises:
        RunFailed: naming a machine that ssh does not reach.
    """
    here = _local_runs(out)
    found = []
    for machine in machines:
        done = on_machine(files, machine, f"{_LIST_RUNS} && {_LIST_SAVED} && {_LIST_JOBS}")
        if done.returncode:
            raise RunFailed(f"{machine}: {last_line(done)}")
        lines = done.stdout.splitlines()
        if any(line.startswith(_WORKS) for line in lines):
            found.append(f"{machine.host(files.name)}: the cells of --detach")
        saved = dict.fromkeys(line.removeprefix(_SAVED) for line in lines if line.startswith(_SAVED))
        found += [f"{machine.host(files.name)}: {folder}, the weights of --save" for folder in saved]
        runs = _parse([line for line in lines if not line.startswith((_WORKS, _SAVED))])
        missing = [run for run in runs if not any(_is_in(run, folder) for folder in here.get(run.cell, []))]
        found += [f"{machine.host(files.name)}: {run.path}" for run in missing]
    return found


def _parse(lines: Sequence[str]) -> list[_RunThere]:
    runs: dict[str, _RunThere] = {}
    for line in lines:
        sha256, size, path = line.split(" ", 2)
        folder, _, name = path.rpartition("/")
        # A file that disappears meanwhile has no size, and no content that counts.
        runs.setdefault(folder, _RunThere(folder)).files[name] = (sha256 if size else "", int(size or 0))
    return [run for run in runs.values() if _HEADER in run.files]


def _is_in(run: _RunThere, folder: Path) -> bool:
    """Whether `folder` has the run as the machine has it, ended, or has more of its events."""
    try:
        header, events = (_bytes(folder / name) for name in (_HEADER, _EVENTS))
        sha256, size = run.files.get(_EVENTS, (_sha256(b""), 0))
        if _sha256(events[:size]) != sha256:
            return False
        same = _sha256(_without_save(header)) == run.files[_HEADER][0]
        return len(events) > size or (same and RunDirectory(folder).header().status != "running")
    except (OSError, UserError):
        return False


def _without_save(header: bytes) -> bytes:
    """The lines of `header` without that of `config.save`, as `_LIST_RUNS` has them."""
    return re.sub(rb"(?m)^  .save.: .*\n", b"", header)


def _local_runs(out: Path) -> dict[str, list[Path]]:
    """The run directories at or below `out`, by name."""
    found: dict[str, list[Path]] = {}
    for folder, _, names in os.walk(out):
        if _HEADER in names:
            found.setdefault(Path(folder).name, []).append(Path(folder))
    return found


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
