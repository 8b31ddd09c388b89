"""On the first host: a job of cells that runs on without the machine that requested it.

`<cache>/detached/<time>/` has the job, the run folder of each cell, and the files that ssh needs there. The process
that works holds a lock on the directory.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from istbench.base.cache import cache_directory
from istbench.launch.hosts.agent_program import Agent
from istbench.launch.hosts.run_folder import CELL, watch

CONFIG = "ssh_config"
JOB, ERRORS, PID = "job.json", "errors", "pid"
DONE, _TAKEN = "done", "taken"  # in the run folder of a cell: it has ended, and its results have been copied
_LOST = "the detached istbench ended without a message, for example because the host was restarted"
_GONE = "another command took the results of the detached cell; run the same command again"
_POLL_S = 0.1
_ENDS_S = 5.0


def _works(folder: Path) -> bool:
    """Whether a process works on the job in `folder`."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return False
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
    """Start a process on the runs of `files` (in JOB, by key), which outlives this program."""
    _delete_left_keys()
    root = cache_directory() / "detached"
    folder = root / f"{time.time_ns()}"
    folder.mkdir(parents=True)
    for own in (root, folder):
        own.chmod(0o700)
    for name, text in question["files"].items():
        path = folder / name
        path.touch(0o600)
        path.write_text(text.replace("{folder}", str(folder)) if name == CONFIG else text)
    for key in json.loads(question["files"][JOB]):
        (folder / key).mkdir(exist_ok=True)
    with (folder / ERRORS).open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "istbench.launch.hosts.detached_job", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    until = time.monotonic() + question["within_s"]
    while not (folder / PID).exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    if not (folder / PID).exists():
        said = (folder / ERRORS).read_text(errors="replace").strip().splitlines() or ["it prints nothing"]
        shutil.rmtree(folder, ignore_errors=True)
        raise OSError(f"the detached istbench does not start: {said[-1]}")


def follow_detached(agent: Agent, question: Mapping[str, Any]) -> str | None:
    """Pass on the messages of the cell `key` to its end; returns its results directory, None if no job has it."""
    folder = job_of(question["key"])
    if folder is None:
        return None
    threading.Thread(target=_watch, args=(agent, folder, question["key"]), daemon=True).start()
    return str(json.loads((folder / JOB).read_bytes())[question["key"]]["out"])


def _watch(agent: Agent, folder: Path, key: str) -> None:
    failure = watch(folder / key, agent.say, lambda: not (folder / key / DONE).exists() and _works(folder))
    if failure is None and not (folder / key / DONE).exists():
        failure = {"message": _LOST if folder.exists() else _GONE, "status": 1, "unfit": False}
    agent.say({"ended": 0 if failure is None else failure["status"], "failure": failure, "tail": []})


def stop_detached(_agent: Agent, question: Mapping[str, Any]) -> bool:
    """End the job that has the cell `key`, as Ctrl-C does; False if none works on it."""
    folder = job_of(question["key"])
    if folder is None or not _works(folder):
        return False
    os.kill(int((folder / PID).read_text()), signal.SIGTERM)
    return True


def take_detached(_agent: Agent, question: Mapping[str, Any]) -> None:
    """Forget the cell `key`, whose results have been copied, and the job after its last cell."""
    folder = job_of(question["key"])
    if folder is None:
        return
    (folder / question["key"] / _TAKEN).touch()
    until = time.monotonic() + _ENDS_S
    while not any(_untaken(run) for run in folder.iterdir()):
        if not _works(folder):
            shutil.rmtree(folder)
            return
        if time.monotonic() > until:
            return
        time.sleep(_POLL_S)


def job_of(key: str) -> Path | None:
    """The newest job that still works, or has results that nobody took, of the cell `key`; None without one.

    While a job works, it is found by its taken cells too: nothing else may train beside it.
    """
    _delete_left_keys()
    for folder in sorted((cache_directory() / "detached").glob("*"), reverse=True):
        if (folder / key).is_dir() and (_untaken(folder / key) or _works(folder)):
            return folder
    return None


def _untaken(run: Path) -> bool:
    """Whether `run` is the folder of a cell that has started, and whose results nobody took."""
    started = (run / CELL).exists() or (run / DONE).exists()
    return started and not (run / _TAKEN).exists()
