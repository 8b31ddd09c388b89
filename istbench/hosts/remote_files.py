"""On a host: the files of a run directory, read and written in parts."""

import contextlib
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from istbench.errors import UserError
from istbench.hosts.agent import Agent
from istbench.node.published import Step, find, newest
from istbench.results.store import RunDirectory

PART = 1 << 20
CHECKPOINT = "checkpoint"
_NEW, _OLD = ".new", ".old"


def how_far(path: Path) -> list[int]:
    """How far the run in `path` is: whether there is one, whether it is done, the step of its checkpoint."""
    run = RunDirectory(path)
    if not run.exists():
        return [0, 0, 0]
    done = False
    with contextlib.suppress(UserError):
        done = run.header().status == "done"
    return [1, int(done), published(path)]


def published(path: Path) -> int:
    """The newest step that the run in `path` can resume from, as far as sizes tell; 0 where there is none."""
    with contextlib.suppress(UserError):
        step = newest(path / CHECKPOINT)
        return step.totals.step if step else 0
    return 0


def how_far_there(_agent: Agent, asked: Mapping[str, Any]) -> list[int]:
    """On a host: `how_far` the run in `path` is."""
    return how_far(Path(asked["path"]))


def list_files(path: Path) -> list[tuple[str, int]]:
    """Names and sizes of the files under `path`; what is no plain file is left out."""
    return [(name, size) for name, size, _ in stamps(path)]


def stamps(path: Path) -> list[tuple[str, int, int]]:
    """Files as `list_files` has them, each with when it last changed, in nanoseconds since 1970."""
    return [
        (str(found.relative_to(path)), status.st_size, status.st_mtime_ns)
        for found in sorted(path.rglob("*"))
        if (status := _regular(found)) is not None
    ]


def _regular(path: Path) -> os.stat_result | None:
    """The status of the plain file `path`; None where it is none, or no more."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def offer(_agent: Agent, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What of the run in `path` can be brought away.

    Returns:
        files: `stamps` of those outside of the checkpoint that are not half-written. steps: the published ones,
        newest first: number, manifest (none of an earlier istbench's), names of files, and what `latest.json` says
        of it. damaged: whether there are published ones that cannot be read.
    """
    path = Path(asked["path"])
    found = find(path / CHECKPOINT)
    steps = [step for step in found if isinstance(step, Step)]
    return {
        "files": [stamp for stamp in stamps(path) if _counts(stamp[0])],
        "steps": [
            {
                "step": step.totals.step,
                "manifest": step.manifest.decode(),
                "names": step.names(),
                "pointer": step.pointer.decode(),
            }
            for step in steps
        ],
        "damaged": len(steps) < len(found),
    }


def _counts(name: str) -> bool:
    return not name.startswith(f"{CHECKPOINT}/") and not name.endswith(".tmp")


def read(_agent: Agent, asked: Mapping[str, Any]) -> bytes:
    """A part of file `name` of the run in `path`, from `offset`."""
    with (Path(asked["path"]) / asked["name"]).open("rb") as file:
        file.seek(asked["offset"])
        return file.read(PART)


def clear_away(_agent: Agent, asked: Mapping[str, Any]) -> None:
    """Throw away what was left of an earlier attempt to write what `keep` is to put at `path`."""
    clear(Path(asked["path"]))


def write(_agent: Agent, asked: Mapping[str, Any]) -> None:
    """Write a part of file `name`, of time `changed`, of what `keep` is to put at `path`."""
    put(Path(asked["path"]), asked["name"], asked["offset"], asked["content"], asked["changed"])


def keep(_agent: Agent, asked: Mapping[str, Any]) -> None:
    """Have what was written stand at `path`."""
    place(Path(asked["path"]))


def put(path: Path, name: str, offset: int, content: bytes, changed: int | None = None) -> None:
    """Write `content` into file `name` of what is to be put at `path`.

    changed: when the file is to have changed last, in nanoseconds since 1970; None for now.
    """
    where = beside(path, _NEW) / name
    where.parent.mkdir(parents=True, exist_ok=True)
    with where.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(content)
    if changed is not None:
        os.utime(where, ns=(changed, changed))


def place(path: Path) -> None:
    """Have what was written stand at `path`, all at once, instead of what was there."""
    new, old = beside(path, _NEW), beside(path, _OLD)
    shutil.rmtree(old, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    with contextlib.suppress(OSError):
        new.parent.rmdir()


def beside(path: Path, what: str = _NEW) -> Path:
    """Where the directory at `path` is put together; reports do not look there."""
    return path.parent.parent / "fetched" / (path.name + what)


def clear(path: Path) -> None:
    """Throw away what was left of an earlier attempt to put something at `path`."""
    _remove(beside(path))


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def safe(name: str) -> bool:
    """Whether `name` is one of a file within its directory."""
    return not Path(name).is_absolute() and ".." not in Path(name).parts and "\0" not in name
