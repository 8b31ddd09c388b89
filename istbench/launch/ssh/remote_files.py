"""On a host: the files of a run directory, read and written in parts."""

import base64
import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from istbench.errors import UserError
from istbench.launch.ssh.hello import Agent
from istbench.results.store import RunDirectory

PART = 1 << 20
_NEW, _OLD = ".new", ".old"


def how_far(path: Path) -> list[int]:
    """How far the run in `path` is: whether there is one, whether it is done, the step of its checkpoint."""
    run = RunDirectory(path)
    if not run.exists():
        return [0, 0, 0]
    done, step = False, 0
    with contextlib.suppress(UserError):
        done = run.header().status == "done"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        step = int(json.loads((run.checkpoint / "latest.json").read_bytes())["step"])
    return [1, int(done), step]


def standing(_agent: Agent, asked: Mapping[str, Any]) -> list[int]:
    """`how_far` the run in `path` is."""
    return how_far(Path(asked["path"]))


def list_files(path: Path) -> list[tuple[str, int]]:
    """Names and sizes of the files under `path`; what is no plain file is left out."""
    return [
        (str(found.relative_to(path)), found.stat().st_size)
        for found in sorted(path.rglob("*"))
        if found.is_file() and not found.is_symlink()
    ]


def files(_agent: Agent, asked: Mapping[str, Any]) -> list[tuple[str, int]]:
    """`list_files` of `path`."""
    return list_files(Path(asked["path"]))


def read(_agent: Agent, asked: Mapping[str, Any]) -> str:
    """A part of file `name` under `path`, from `offset`, in base 64."""
    with (Path(asked["path"]) / asked["name"]).open("rb") as file:
        file.seek(asked["offset"])
        return base64.b64encode(file.read(PART)).decode()


def clear_away(_agent: Agent, asked: Mapping[str, Any]) -> None:
    """Throw away what was left of an earlier attempt to write what `keep` is to put at `path`."""
    clear(Path(asked["path"]))


def write(_agent: Agent, asked: Mapping[str, Any]) -> None:
    """Write a part of file `name` of what `keep` is to put at `path`."""
    put(Path(asked["path"]), asked["name"], asked["offset"], base64.b64decode(asked["content"]))


def keep(_agent: Agent, asked: Mapping[str, Any]) -> None:
    """Have what was written stand at `path`."""
    place(Path(asked["path"]))


def put(path: Path, name: str, offset: int, content: bytes) -> None:
    """Write `content` into file `name` of what `place` is to put at `path`."""
    where = beside(path, _NEW) / name
    where.parent.mkdir(parents=True, exist_ok=True)
    with where.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(content)


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
    shutil.rmtree(beside(path), ignore_errors=True)


def safe(name: str) -> bool:
    """Whether `name` is one of a file within its directory."""
    return not Path(name).is_absolute() and ".." not in Path(name).parts and "\0" not in name
