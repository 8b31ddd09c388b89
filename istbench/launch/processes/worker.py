"""One worker process: set up its place and logs, run the job's target, report a failure to the launcher."""

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from istbench.base.activity import current
from istbench.base.decode import encode_json
from istbench.base.error_lines import error_line
from istbench.base.errors import RunFailed, UserError, lacks_memory
from istbench.fabric import FabricError
from istbench.launch.processes.failures import activity_path, done_path, failure_path, log_directory
from istbench.launch.processes.launcher import ENDING, Job
from istbench.launch.processes.orphans import die_with_launcher
from istbench.launch.processes.place import Place

_AFTER_THE_CAUSE_S = 1.0
_KINDS = {"user": UserError, "run": RunFailed, "fabric": FabricError}


def work(job: Job, rank: int, place: Place, environment: Mapping[str, str]) -> None:
    """Run worker `rank` of `job` in `place`. The launcher calls it in a new process."""
    # Searching what the fork server imported for garbage would take a quarter of a second, and copy its memory.
    gc.freeze()
    gc.enable()  # which the fork server disabled
    _leave_signals_to_launcher()
    _print_into(log_directory(job.logs, rank))
    with contextlib.suppress(OSError):  # on a full disk, the worker runs without a shared activity
        current.share(activity_path(job.logs, rank))
    os.environ.update(environment)
    place.enter(rank)
    die_with_launcher()
    run_and_report(job.target, job.args, job.logs)


def _leave_signals_to_launcher() -> None:
    """Ignore signals to a whole process group. Processes that this one starts still end by SIGTERM."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)  # programs would inherit SIG_IGN
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(after_in_child=partial(signal.signal, signal.SIGTERM, signal.SIG_DFL))


def _print_into(directory: Path) -> None:
    """Redirect the output of this process, including C code, to stdout.log and stderr.log in `directory`."""
    directory.mkdir(parents=True)
    for stream, descriptor, name in ((sys.stdout, 1, "stdout.log"), (sys.stderr, 2, "stderr.log")):
        stream.flush()
        with (directory / name).open("wb") as file:
            os.dup2(file.fileno(), descriptor)


def run_and_report(target: Callable[..., None], args: tuple[object, ...], logs: Path) -> None:
    """Run `target(*args)` as the worker with rank RANK; then mark it as done in `logs`.

    If the target raises, write a failure report to `logs` and end the process. If the target ends the process
    itself, there is no mark.
    """
    if sys.platform == "linux":
        # As in the launcher. Processes of a user's DataLoader could not import a task file, which has no place on
        # the path, and Python's fork server hands on its own way to start processes.
        multiprocessing.set_start_method("fork", force=True)
    try:
        target(*args)
        done_path(logs, int(os.environ["RANK"])).touch()
    except BaseException as error:
        if isinstance(error, SystemExit) and error_line(error) is None:
            _leave(_status(error))
        _report(logs, error)
        traceback.print_exc()
        if isinstance(error, FabricError):
            # This worker sees a peer's death first. The launcher must see the peer before it sees this process end.
            sys.stderr.flush()
            time.sleep(_AFTER_THE_CAUSE_S)
        _leave(1)


def _status(end: SystemExit) -> int:
    """The exit status that Python makes of `end`. Python prints a code that is not a number."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _leave(status: int) -> None:
    """End the process without the process group's own shutdown, which waits for peers that may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _report(logs: Path, error: BaseException) -> None:
    kind = next((kind for kind, of in _KINDS.items() if isinstance(error, of)), "error")
    text = str(error) if kind != "error" else f"{type(error).__name__}: {error}".removesuffix(": ")
    if kind == "error" and lacks_memory(error):
        requested = re.search(r"tried to allocate ([\d.]+ \w+)", text, re.IGNORECASE)
        kind, text = "memory", f" when it asked for {requested[1]} more" if requested else ""
    plugin = error_line(error) if kind == "error" else None
    if plugin is not None:
        kind, text = "plugin", plugin
    path = failure_path(logs, int(os.environ["RANK"]))
    try:
        path.write_bytes(encode_json({"kind": kind, "message": text}))
    except OSError as problem:
        print(f"could not write {path}: {problem}", file=sys.stderr)
