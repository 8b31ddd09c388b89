"""Cells as jobs of a Slurm cluster, a job a cell, through submitit.

Every job runs one cell on one machine, as `istbench run` does there. The results directory is one that all machines
share: what became of a cell stands in its run directory, wherever it ran.
"""

import dataclasses
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from istbench.backends.slurm_jobs import Noted, Submission
from istbench.backends.slurm_queue import Queue, queued_jobs
from istbench.config.options import parse_pairs
from istbench.config.run import RunRequest
from istbench.door import convert
from istbench.errors import RunFailed, UserError, printable

Say = Callable[[str], None]
_EVERY_S = 2.0
_Word = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\s\x00]+$")]
_INTERRUPTED = "interrupted; the same command goes on with it"


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What Slurm is to give every job.

    Attributes:
        partition, account, qos, constraint: as `sbatch` has them; None leaves it to the cluster.
        minutes: limit on a job's time; one that runs into it is queued again, and goes on.
        cpus: cores. gpus: GPUs. memory_gb: memory.
        executor: `local` and `debug` run the jobs here, without Slurm, to try things out.
    """

    partition: _Word | None = None
    account: _Word | None = None
    qos: _Word | None = None
    constraint: _Word | None = None
    minutes: Annotated[int, Meta(ge=1, le=60 * 24 * 60)] = 24 * 60
    cpus: Annotated[int, Meta(ge=1, le=4096)] | None = None
    gpus: Annotated[int, Meta(ge=0, le=64)] | None = None
    memory_gb: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    executor: Literal["slurm", "local", "debug"] = "slurm"

    @classmethod
    def parse(cls, pairs: Sequence[str]) -> "SlurmOptions":
        """The options of texts such as `partition=gpu`.

        Raises:
            UserError: for an unknown name, with the nearest, or a value out of bounds.
        """
        given = parse_pairs(pairs, "--slurm")
        return convert(given, cls, lambda path: " ".join(["--slurm", *map(str, path)]), text=True)


@dataclass(frozen=True, kw_only=True)
class CellJob:
    """What a job does: one cell. `out` is the results directory, `again` whether to run it anew."""

    request: RunRequest
    out: str
    again: bool

    def __call__(self) -> str | None:
        """Run the cell; returns why it failed, or None."""
        from istbench.cells.execute import execute, run_directory
        from istbench.cells.resolve import prepare_cell
        from istbench.processes.local import LocalLauncher

        try:
            cell = prepare_cell(self.request, lambda *_: None)
            with tempfile.TemporaryDirectory(prefix="istbench-", ignore_cleanup_errors=True) as scratch:
                run = run_directory(Path(self.out), cell.name)
                execute(cell, run, Path(scratch), LocalLauncher(), again=self.again)
        except (UserError, RunFailed) as error:
            return str(error)
        except KeyboardInterrupt:
            return _INTERRUPTED
        return None

    def checkpoint(self) -> Any:
        """What submitit queues when the job runs into its limit of time: the same, going on."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(dataclasses.replace(self, again=False))


def run_as_jobs(
    requests: Sequence[RunRequest],
    names: Sequence[str],
    out: Path,
    options: SlurmOptions,
    say: Say,
    *,
    again: bool = False,
) -> list[str]:
    """Run every cell of `requests`, called `names`, as a job, wait for all, and return a line for each that failed.

    Cells that are done are not run again, unless `again`; a job that an earlier call submitted, and that is still
    there, is waited for. Those that Slurm has no room for are submitted as others end.

    Raises:
        UserError: where submitit or Slurm is missing, Slurm takes no job at all, or `out` cannot be written.
        KeyboardInterrupt: by a signal.
        Both after a line that says which jobs go on; those of other executors are ended.
    """
    noted = Noted(out / "slurm" / "jobs.json")
    submission = Submission(_executor(out, options), noted, say)
    try:
        for request, name in zip(requests, names, strict=True):
            if not again and _is_done(out, name):
                say(f"{name}: done before")
            elif job := noted.find(name, options.executor):
                submission.jobs[name] = job
            else:
                submission.left[name] = CellJob(request=request, out=str(out.resolve()), again=again)
        submission.more(len(submission.jobs))
        return _collect(submission.jobs, say, submission.more) + submission.failures
    except (KeyboardInterrupt, UserError):
        _leave(submission.jobs, options, say)
        raise


def _executor(out: Path, options: SlurmOptions) -> Any:
    try:
        import submitit
    except ImportError:
        raise UserError("submitit is not installed, which speaks to Slurm: pip install 'istbench[slurm]'") from None
    # It warns at every look at the jobs where Slurm keeps no accounts.
    logging.getLogger("submitit").setLevel(logging.ERROR)
    try:
        executor = submitit.AutoExecutor(folder=str(out / "slurm" / "%j"), cluster=options.executor)
    except RuntimeError:
        raise UserError(
            "no Slurm here: no `srun` is found; run it where it is, or --slurm executor=local"
        ) from None
    except OSError as error:
        raise UserError(f"cannot write {out / 'slurm'}: {error.strerror}; choose another --out") from None
    wanted = {
        "slurm_partition": options.partition,
        "slurm_account": options.account,
        "slurm_qos": options.qos,
        "slurm_constraint": options.constraint,
        "cpus_per_task": options.cpus,
        "gpus_per_node": options.gpus,
        "mem_gb": options.memory_gb,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    executor.update_parameters(name="istbench", timeout_min=options.minutes, nodes=1, tasks_per_node=1, **given)
    return executor


def _collect(jobs: dict[str, Any], say: Say, more: Callable[[int], int] = lambda alive: 0) -> list[str]:
    """Wait for all jobs, and say of each when it has ended; returns a line for each that failed.

    `more` is called with how many have not ended, may add to `jobs`, and returns how many are to be added later.
    """
    ended: set[str] = set()
    failures, queue = [], Queue()
    while True:
        to_come = more(len(jobs) - len(ended))
        for name, job in jobs.items():
            if name in ended:
                continue
            gone = _is_slurms(job) and queue.lacks(str(job.job_id))
            if not job.done() and not gone:
                continue
            ended.add(name)
            failure = _failure(job) if job.done() else _gone(job)
            say(f"[{len(ended)}/{len(jobs) + to_come}] {name}: {'failed' if failure else 'done'}")
            if failure:
                failures.append(f"{name}: {failure}")
        if len(ended) == len(jobs) and not to_come:
            return failures
        time.sleep(_EVERY_S)


def _failure(job: Any) -> str | None:
    """Why the job did not do what it was to; None where it did."""
    error = job.exception()
    if error is None:
        answer: str | None = job.result()
        return answer
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = printable(lines[-1])[:300] if lines else type(error).__name__
    return f"job {job.job_id} ended: {last}; its output is in {job.paths.folder}"


def _is_slurms(job: Any) -> bool:
    import submitit

    return isinstance(job, submitit.SlurmJob)


def _gone(job: Any) -> str:
    return (
        f"job {job.job_id} is gone, and left no result: it was cancelled, or its machine was lost; its output is "
        f"in {job.paths.folder}, and the same command submits it again"
    )


def _leave(jobs: dict[str, Any], options: SlurmOptions, say: Say) -> None:
    alive = [job for job in jobs.values() if not job.done()] if options.executor != "debug" else []
    if options.executor == "slurm":
        queued = queued_jobs() if alive else None
        identities = [str(job.job_id) for job in alive if queued is None or str(job.job_id) in queued]
        if identities:
            ends = f"`scancel {' '.join(identities)}` ends them"
            say(f"{len(identities)} jobs go on, and the same command waits for them; {ends}")
        return
    for job in alive:
        job.cancel()


def _is_done(out: Path, name: str) -> bool:
    from istbench.cells.execute import run_directory

    run = run_directory(out, name)
    return run.exists() and run.header().status == "done"
