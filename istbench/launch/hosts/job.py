"""The process of a detached job on the first host: it requests the cells from all hosts, one after another."""

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.launch.hosts.detached import CONFIG, ERRORS, JOB, PID, DetachedJob, JobCell, read_states, write_states
from istbench.launch.hosts.group import Unfit
from istbench.launch.hosts.run import HostsRun, run_on_hosts


def work(folder: Path, parse: Callable[[Sequence[str], int], RunRequest]) -> None:
    """Train the cells of the job in `folder`, and record the state of each; `parse` makes requests of words."""
    descriptor = os.open(folder, os.O_RDONLY)  # open until this process ends
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, _interrupt)
        (folder / PID).write_text(str(os.getpid()))
        job = msgspec.json.decode((folder / JOB).read_bytes(), type=DetachedJob)
        try:
            for cell in job.cells:
                _train(folder, job, cell, parse)
        finally:
            for secret in folder.glob("key-*"):
                secret.unlink()


def _interrupt(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _train(
    folder: Path, job: DetachedJob, cell: JobCell, parse: Callable[[Sequence[str], int], RunRequest]
) -> None:
    def record(**fields: Any) -> None:
        states = read_states(folder)
        write_states(folder, {**states, cell.key: msgspec.structs.replace(states[cell.key], **fields)})

    def started(name: str) -> None:
        record(phase="running", cell=name)

    with (folder / f"{cell.key}.log").open("a", buffering=1) as log:
        try:
            run = HostsRun(request=parse(cell.words, cell.nodes), out=Path(job.out), again=cell.again)
            config = folder / CONFIG
            found = run_on_hosts(
                cell.hosts, job.pythons, run, lambda line: print(line, file=log), config, started=started
            )
            record(phase="done", cell=found.path.name)
        except Unfit as unfit:
            record(phase="unfit", message="\n".join(unfit.problems))
        except (RunFailed, UserError) as error:
            record(phase="failed", message=str(error), wrong_use=isinstance(error, UserError))
        except KeyboardInterrupt:
            record(phase="interrupted")
            raise
        except Exception as error:
            record(phase="failed", message=f"{type(error).__name__}: {error}; see {folder / ERRORS}")
            raise
