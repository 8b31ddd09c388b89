"""On the first host: a job of cells that runs on without the machine that requested it.

`<cache>/detached/<time>/` has the job, the state and log of each cell, and the files that ssh needs there.
The process that works holds a lock on the directory.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from istbench.base.files import writing_whole
from istbench.launch.hosts.action import Agent
from istbench.launch.hosts.names import Host
from istbench.workloads.cache import cache_directory

CONFIG = "ssh_config"
JOB, _STATES, ERRORS, PID = "job.json", "states.json", "errors", "pid"
_LOST = "the detached istbench ended without a message, for example because the host was restarted"
_MOST_LINES = 1000
_ENDS_S = 5.0
Phase = Literal["waiting", "running", "done", "failed", "unfit", "interrupted"]


class JobCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell of a job: its key, its words as this host runs them, and its hosts, this one first."""

    key: str
    words: list[str]
    nodes: int
    again: bool
    hosts: list[Host]


class DetachedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Cells to train one after another, the results directory, and names of Pythons on the hosts."""

    cells: list[JobCell]
    out: str
    pythons: list[str]


class CellState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a cell is.

    Attributes:
        cell: its name, once known. message: why it failed; several lines if hosts are unfit. wrong_use: whether the
            user can mend that. taken: whether the machine that requested it has its results.
    """

    phase: Phase = "waiting"
    cell: str = ""
    message: str = ""
    wrong_use: bool = False
    taken: bool = False


class CellReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cell, the results directory, and the lines of its log from an offset to the next one."""

    state: CellState
    out: str
    lines: list[str]
    offset: int


States = dict[str, CellState]


def _works(folder: Path) -> bool:
    """Whether a process works on the job in `folder`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _delete_left_keys() -> None:
    """Delete the ssh keys of jobs whose process was killed, for example by a restart of this host."""
    for folder in (cache_directory() / "detached").glob("*"):
        with contextlib.suppress(OSError):
            if (folder / PID).exists() and not _works(folder):  # a job without PID may be about to start
                for key in folder.glob("key-*"):
                    key.unlink()


def start_detached(_agent: Agent, question: Mapping[str, Any]) -> None:
    """Start the module `by` on the job in `content`, with `files` beside it; it outlives this program."""
    _delete_left_keys()
    root = cache_directory() / "detached"
    folder = root / f"{time.time_ns()}"
    folder.mkdir(parents=True)
    for own in (root, folder):
        own.chmod(0o700)
    job = msgspec.json.decode(question["content"], type=DetachedJob)
    for name, text in {**question["files"], JOB: question["content"].decode()}.items():
        path = folder / name
        path.touch(0o600)
        path.write_text(text.replace("{folder}", str(folder)) if name == CONFIG else text)
    write_states(folder, {cell.key: CellState() for cell in job.cells})
    with (folder / ERRORS).open("wb") as errors:
        subprocess.Popen(
            [sys.executable, "-P", "-m", question["by"], str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    until = time.monotonic() + question["within_s"]
    while not (folder / PID).exists() and time.monotonic() < until:
        time.sleep(0.05)
    if not (folder / PID).exists():
        said = (folder / ERRORS).read_text(errors="replace").strip().splitlines() or ["it prints nothing"]
        shutil.rmtree(folder, ignore_errors=True)
        raise OSError(f"the detached istbench does not start: {said[-1]}")


def report_detached(_agent: Agent, question: Mapping[str, Any]) -> dict[str, Any] | None:
    """The `CellReport` of the cell `key`, with its log from `offset`; None if no job has it."""
    _delete_left_keys()
    folder = _folder_of(question["key"])
    if folder is None:
        return None
    job = msgspec.json.decode((folder / JOB).read_bytes(), type=DetachedJob)
    lines: list[str] = []
    offset = question["offset"]
    with contextlib.suppress(OSError), (folder / f"{question['key']}.log").open("rb") as log:
        log.seek(offset)
        whole = [line for line in log.readlines(1 << 20)[:_MOST_LINES] if line.endswith(b"\n")]
        lines, offset = [line.decode(errors="replace") for line in whole], offset + sum(map(len, whole))
    state = read_states(folder)[question["key"]]
    if state.phase == "running" and not _works(folder) and read_states(folder)[question["key"]] == state:
        state = msgspec.structs.replace(state, phase="failed", message=_LOST)
    found: dict[str, Any] = msgspec.to_builtins(CellReport(state=state, out=job.out, lines=lines, offset=offset))
    return found


def stop_detached(_agent: Agent, question: Mapping[str, Any]) -> bool:
    """End the job that has the cell `key`, as Ctrl-C does; False if none works on it."""
    folder = _folder_of(question["key"])
    if folder is None or not _works(folder):
        return False
    os.kill(int((folder / PID).read_text()), signal.SIGTERM)
    return True


def take_detached(_agent: Agent, question: Mapping[str, Any]) -> None:
    """Forget the cell `key`, whose results have been copied, and the job after its last cell."""
    folder = _folder_of(question["key"])
    if folder is None:
        return
    (folder / f"{question['key']}.taken").touch()
    until = time.monotonic() + _ENDS_S
    while all(state.taken or state.phase == "waiting" for state in read_states(folder).values()):
        if not _works(folder):
            shutil.rmtree(folder)
            return
        if time.monotonic() > until:
            return
        time.sleep(0.05)


def _folder_of(key: str) -> Path | None:
    """The newest job that still works, or has results that nobody took, of the cell `key`; None without one.

    While a job works, it is found by its taken cells too: nothing else may train beside it.
    """
    for folder in sorted((cache_directory() / "detached").glob("*"), reverse=True):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            state = read_states(folder).get(key)
            if state is not None and ((not state.taken and state.phase != "waiting") or _works(folder)):
                return folder
    return None


def read_states(folder: Path) -> States:
    """The states of the cells of the job in `folder`, by key."""
    states = msgspec.json.decode((folder / _STATES).read_bytes(), type=States)
    return {
        key: msgspec.structs.replace(state, taken=state.taken or (folder / f"{key}.taken").exists())
        for key, state in states.items()
    }


def write_states(folder: Path, states: States) -> None:
    """Record the states of all cells, whole."""
    with writing_whole(folder / _STATES) as file:
        file.write(msgspec.json.encode(states))
