"""On a host: the files of a run directory, read and written in parts."""

import contextlib
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from istbench.base.errors import UserError
from istbench.base.files import require_no_link
from istbench.launch.hosts.agent_program import Agent
from istbench.node.checkpoint_steps import Step, find, newest
from istbench.results.store import OfAnotherCell, RunDirectory

PART = 1 << 20
CHECKPOINT = "checkpoint"
_NEW, _OLD = ".new", ".old"


def how_far(path: Path) -> list[int]:
    """Progress of the run in `path`: whether it exists, whether it is done, the step of its checkpoint.

    Raises:
        OfAnotherCell: its header or its checkpoint is of another cell, so that no copy may replace it.
    """
    run = RunDirectory(path)
    find(path / CHECKPOINT)
    if not run.exists():
        return [0, 0, 0]
    try:
        done = run.own_header().status == "done"
    except OfAnotherCell:
        raise
    except UserError:
        done = False
    return [1, int(done), published(path)]


def published(path: Path) -> int:
    """The newest step that the run in `path` can resume from, judged by sizes; 0 if there is none."""
    with contextlib.suppress(UserError):
        step = newest(path / CHECKPOINT)
        return step.totals.step if step else 0
    return 0


def how_far_there(_agent: Agent, question: Mapping[str, Any]) -> list[int] | str:
    """On a host: `how_far` the run in `path` is, or the error of a run of another cell."""
    try:
        return how_far(Path(question["path"]))
    except OfAnotherCell as error:
        return str(error)


def stamps(path: Path) -> list[tuple[str, int, int]]:
    """The plain files under `path`: name, size, time of last change in nanoseconds since 1970."""
    stamps = []
    for found in sorted(path.rglob("*")):
        with contextlib.suppress(OSError):  # it is gone
            status = found.lstat()
            if stat.S_ISREG(status.st_mode):
                stamps.append((str(found.relative_to(path)), status.st_size, status.st_mtime_ns))
    return stamps


def list_run(_agent: Agent, question: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of the run in `path` that can be copied.

    Returns:
        files: `stamps` of whole files outside the checkpoint.
        steps: the published ones, newest first: number and manifest.
        damaged: whether there are published steps that cannot be read.
    """
    path = Path(question["path"])
    found = find(path / CHECKPOINT)
    steps = [step for step in found if isinstance(step, Step)]
    return {
        "files": [stamp for stamp in stamps(path) if _counts(stamp[0])],
        "steps": [(step.totals.step, step.manifest.decode()) for step in steps],
        "damaged": len(steps) < len(found),
    }


def _counts(name: str) -> bool:
    return not name.startswith(f"{CHECKPOINT}/") and not name.endswith(".tmp")


def read(_agent: Agent, question: Mapping[str, Any]) -> bytes:
    """A part of file `name` of the run in `path`, from `offset`."""
    with (Path(question["path"]) / question["name"]).open("rb") as file:
        file.seek(question["offset"])
        return file.read(PART)


def write(_agent: Agent, question: Mapping[str, Any]) -> None:
    """Write `content` at `offset` of file `name` in `folder`, and set its time `changed`, if that is not None."""
    path, changed = Path(question["folder"]) / question["name"], question["changed"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()  # parts come in any order
    with path.open("r+b") as file:
        file.seek(question["offset"])
        file.write(question["content"])
    if changed is not None:
        os.utime(path, ns=(changed, changed))


def place(path: Path) -> None:
    """Replace `path` by the finished copy, at once."""
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
    """The directory in which the copy to `path` grows; reports ignore it."""
    return path.parent.parent / "fetched" / (path.name + what)


def clear(path: Path) -> None:
    """Delete the rest of an earlier, incomplete copy to `path`.

    Raises:
        UserError: the directory of copies, or that of runs, is a link.
    """
    new = beside(path)
    for folder in (new.parent, path.parent):
        require_no_link(folder, "choose another --out")
    if new.is_symlink():
        new.unlink()
    shutil.rmtree(new, ignore_errors=True)
    with contextlib.suppress(OSError):
        new.parent.rmdir()


def safe(name: str) -> bool:
    """Whether `name` stays inside its directory."""
    return not Path(name).is_absolute() and ".." not in Path(name).parts and "\0" not in name
