"""The process of a detached job on the first host: it requests the cells from all hosts, one after another.

`python -m istbench.launch.hosts.detached_job FOLDER` works on the job in FOLDER.
"""

import contextlib
import fcntl
import os
import signal
import sys
from functools import partial
from pathlib import Path

from istbench.base.errors import RunFailed, UserError
from istbench.launch.hosts.group import Unfit
from istbench.launch.hosts.remote_detached import CONFIG, DONE, ERRORS, JOB, PID, DetachedJob, JobCell
from istbench.launch.hosts.restarts import run_with_restarts
from istbench.launch.hosts.run import HostsRun
from istbench.launch.hosts.run_folder import SAID, write_cell, write_failure
from istbench.launch.processes.failures import may_go_on


def work(folder: Path) -> None:
    """Train the cells of the job in `folder`, and report how each ends."""
    descriptor = os.open(folder, os.O_RDONLY)  # open until this process ends
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        (folder / PID).write_text(str(os.getpid()))
        job = DetachedJob.of((folder / JOB).read_bytes())
        try:
            for cell in job.cells:
                _train(folder, job, cell)
        finally:
            for secret in folder.glob("key-*"):
                secret.unlink()


def _train(folder: Path, job: DetachedJob, cell: JobCell) -> None:
    run = folder / cell.key
    with (run / SAID).open("a", buffering=1) as said:

        def say(line: str) -> None:
            print(line, file=said)

        try:
            wanted = HostsRun(
                request=cell.request,
                out=Path(job.out),
                again=cell.again,
                hosts=cell.hosts,
                pythons=job.pythons,
                config=folder / CONFIG,
                restarts=cell.restarts,
            )
            run_with_restarts(wanted, say, partial(write_cell, run))
        except Unfit as error:
            write_failure(run, str(error), 2, unfit=True)
        except (RunFailed, UserError) as error:
            status = 2 if isinstance(error, UserError) else 1
            write_failure(run, str(error), status, lost=may_go_on(error))
        except KeyboardInterrupt:
            write_failure(run, "interrupted", 130)
            raise
        except Exception as error:
            write_failure(run, f"{type(error).__name__}: {error}; see {folder / ERRORS}", 1)
            raise
        finally:
            (run / DONE).touch()


if __name__ == "__main__":
    work(Path(sys.argv[1]))
