"""What a worker on this machine does before its job begins."""

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from istbench.activity import current
from istbench.processes.failures import activity_path, log_directory
from istbench.processes.last_word import with_last_word
from istbench.processes.launcher import Job
from istbench.processes.orphans import die_with_launcher
from istbench.processes.place import Place


def work(job: Job, rank: int, place: Place, environment: Mapping[str, str]) -> None:
    """Be worker `rank` of `job`, in `place`; runs in a process of its own."""
    # Ctrl-C reaches every process of a terminal; the launcher alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _print_into(log_directory(job.logs, rank))
    with contextlib.suppress(OSError):  # a full disk: then nobody knows what it does
        current.share(activity_path(job.logs, rank))
    os.environ.update(environment)
    place.enter(rank)
    die_with_launcher()
    with_last_word(job.target, job.args, job.logs)


def _print_into(directory: Path) -> None:
    """Send what this process prints, from C code too, to stdout.log and stderr.log in `directory`."""
    directory.mkdir(parents=True)
    for stream, descriptor, name in ((sys.stdout, 1, "stdout.log"), (sys.stderr, 2, "stderr.log")):
        stream.flush()
        with (directory / name).open("wb") as file:
            os.dup2(file.fileno(), descriptor)
