"""On a host: the files of a run directory, read and written in parts."""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from istbench.errors import UserError
from istbench.files import hard_link
from istbench.launch.ssh.hello import Agent
from istbench.results.store import RunDirectory

PART = 1 << 20
LATEST = "checkpoint/latest.json"
_NEW, _OLD, _HELD = ".new", ".old", ".held"
_TRIES = 5
_holding: set[Path] = set()


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
    """The step of the checkpoint that counts, of the run in `path`; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((path / LATEST).read_bytes())["step"])
    return 0


def standing(_agent: Agent, asked: Mapping[str, Any]) -> list[int]:
    """`how_far` the run in `path` is."""
    return how_far(Path(asked["path"]))


def list_files(path: Path) -> list[tuple[str, int]]:
    """Names and sizes of the files under `path`; what is no plain file is left out."""
    return [(name, size) for name, size, _ in stamps(path)]


def stamps(path: Path) -> list[tuple[str, int, int]]:
    """Files as `list_files` has them, each with when it last changed, in nanoseconds since 1970."""
    return [
        _stamp(found, str(found.relative_to(path)))
        for found in sorted(path.rglob("*"))
        if found.is_file() and not found.is_symlink()
    ]


def _stamp(file: Path, name: str) -> tuple[str, int, int]:
    status = file.stat()
    return name, status.st_size, status.st_mtime_ns


def hold(agent: Agent, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the files of the run in `path` as they are, for `read`, until `release`: a run that goes on deletes a
    checkpoint once it has a newer one.

    Returns the `names` of all files that count, and as `new` the `stamps` of those that `have` lacks.
    """
    path, have = Path(asked["path"]), {tuple(stamp) for stamp in asked["have"]}
    if path not in _holding:
        _holding.add(path)
        agent.undo.append(partial(_let_go, path))
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return _hold(path, have)
    raise OSError("the run directory changes all the time")


def _hold(path: Path, have: set[tuple[Any, ...]]) -> dict[str, Any]:
    """As `hold`; FileNotFoundError where a newer checkpoint took the place of the one that was to be held."""
    _let_go(path)
    step = published(path)
    found = [stamp for stamp in stamps(path) if _counts(stamp[0], step)]
    changed = [stamp[0] for stamp in found if stamp not in have]
    for name in changed:
        hard_link(path / name, _held(path) / name)
    new = [_stamp(_where(path, name), name) for name in changed]
    if published(path) != step:
        raise FileNotFoundError
    return {"names": [name for name, *_ in found], "new": new}


def _counts(name: str, step: int) -> bool:
    """Whether file `name` is one to bring: not half-written, and of no other checkpoint than that of `step`."""
    if name.startswith("checkpoint/"):
        return name == LATEST or name.startswith(f"checkpoint/{step}/")
    return not name.endswith(".tmp")


def _held(path: Path) -> Path:
    return beside(path, _HELD)


def _where(path: Path, name: str) -> Path:
    """Where file `name` of the run in `path` is read, held or not."""
    return _held(path) / name if (_held(path) / name).exists() else path / name


def release(_agent: Agent, asked: Mapping[str, Any]) -> None:
    """Let go of what `hold` keeps of the run in `path`."""
    _let_go(Path(asked["path"]))


def _let_go(path: Path) -> None:
    _remove(_held(path))


def read(_agent: Agent, asked: Mapping[str, Any]) -> bytes:
    """A part of file `name` of the run in `path`, as it is held, from `offset`."""
    with _where(Path(asked["path"]), asked["name"]).open("rb") as file:
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
