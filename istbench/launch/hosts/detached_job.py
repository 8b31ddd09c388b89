"""The process of a detached job on the first host: it requests the cells from all hosts, one after another.

`python -m istbench.launch.hosts.detached_job FOLDER` works on the job in FOLDER.
"""

import contextlib
import dataclasses
import fcntl
import os
import signal
import sys
from functools import partial
from pathlib import Path

import msgspec

from istbench.base.decode import decode_own
from istbench.base.errors import RunFailed, UserError
from istbench.launch.hosts.group import Unfit
from istbench.launch.hosts.remote_detached import CONFIG, DONE, ERRORS, JOB, PID
from istbench.launch.hosts.restarts import run_with_restarts
from istbench.launch.hosts.run import HostsRun
from istbench.launch.hosts.run_folder import SAID, Failure, write_cell, write_failure
from istbench.launch.processes.failures import may_go_on


def work(folder: Path) -> None:
    """Train the cells of the job in `folder`, and report how each ends."""
    descriptor = os.open(folder, os.O_RDONLY)  # open until this process ends
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        (folder / PID).write_text(str(os.getpid()))
        runs = msgspec.json.decode((folder / JOB).read_bytes(), type=dict[str, HostsRun], dec_hook=decode_own)
        try:
            for key, run in runs.items():
                train(folder / key, dataclasses.replace(run, config=folder / CONFIG))
        finally:
            for secret in folder.glob("key-*"):
                secret.unlink()


def train(folder: Path, run: HostsRun) -> None:
    """Train the cell of `run`, and report in `folder` how it ends."""
    with (folder / SAID).open("a", buffering=1) as said:
        try:
            run_with_restarts(run, partial(print, file=said), partial(write_cell, folder))
        except Unfit as error:
            write_failure(folder, Failure(str(error), 2, unfit=True))
        except (RunFailed, UserError) as error:
            status = 2 if isinstance(error, UserError) else 1
            write_failure(folder, Failure(str(error), status, lost=may_go_on(error)))
        except KeyboardInterrupt:
            write_failure(folder, Failure("interrupted", 130))
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}; see {folder.parent / ERRORS}"
            write_failure(folder, Failure(message, 1))
            raise
        finally:
            (folder / DONE).touch()


if __name__ == "__main__":
    work(Path(sys.argv[1]))
