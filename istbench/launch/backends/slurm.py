"""Cells as jobs of a Slurm cluster, one job for each cell, through submitit: `--slurm`.

Every job runs one cell on one machine, as `istbench run` does there. All machines share the results directory, so
the run directory of a cell tells its state, whichever machine ran it.
"""

import contextlib
import dataclasses
import getpass
import json
import logging
import math
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from istbench.base.decode import convert, decode_json, read_bytes
from istbench.base.errors import RunFailed, UserError, printable
from istbench.base.files import require_no_link, write_errors, writing_whole
from istbench.base.options.options import parse_pairs
from istbench.base.options.run import RunRequest
from istbench.base.plugin_code import no_code_from_here
from istbench.base.scratch import scratch_folder
from istbench.base.units import counted
from istbench.launch.backends.backend import Backend, BackendOption, Outcome, Screen
from istbench.launch.backends.here import Here
from istbench.results.header import CellName, Header
from istbench.results.store import RunDirectory

Say = Callable[[str], None]
_JobId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,40}\Z")]
_Word = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\s\x00]+$")]
_INTERRUPTED = "interrupted; the same command resumes it"
_LOOKS_EVERY_S = 2.0
_SETTLES_S = 15.0  # until Slurm no longer counts a job that has ended
_PATIENCE_S = 120.0  # until Slurm must take a job again after all earlier ones have ended
_QUEUE_EVERY_S = 10.0
_GONE_S = 30.0  # until a result appears on a shared file system after its job has left the queue
_SQUEUE_S = 60.0
_MOST_TIMEOUTS = 1000  # submitit queues a job again only three times by default


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resources and limits that Slurm gives every job.

    Attributes:
        partition, account, qos, constraint: as `sbatch` has them; None leaves it to the cluster.
        minutes: time limit of a job; Slurm queues a job again when it reaches the limit, and the job resumes.
        cpus: cores. gpus: GPUs. memory_gb: memory.
        executor: `local` and `debug` run the jobs here, without Slurm, for tests.
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
class Slurm(Backend):
    """A Slurm cluster that shares its file system with this machine. Each cell runs as a job with `options`."""

    chosen_by: ClassVar[str] = "--slurm"
    choices: ClassVar[tuple[BackendOption, ...]] = (
        BackendOption(
            flag="--slurm",
            metavar="NAME=VALUE",
            multiple=True,
            help="Run each cell as a Slurm job: partition=gpu, minutes=60, ... May be repeated; see docs/slurm.md.",
        ),
    )
    options: SlurmOptions
    restarts: int = 0

    @classmethod
    def chosen(cls, given: Mapping[str, Any]) -> "Slurm | None":
        """The Slurm cluster of this machine, if the user named options of jobs."""
        pairs = given.get("slurm")
        return cls(options=SlurmOptions.parse(pairs)) if pairs else None

    def restarting(self, restarts: int, *, typed: bool) -> "Slurm":
        """The same, where each job starts the nodes of its cell again that often."""
        return dataclasses.replace(self, restarts=restarts)

    def run(self, cells: Sequence[RunRequest], out: Path, again: bool, screen: Screen) -> Iterator[Outcome]:
        """Submit all cells and wait for their jobs; see `Backend.run`."""
        from istbench.launch.cells.resolve import prepare_cells

        gpu = bool(self.options.gpus) if self.options.executor == "slurm" else None
        resolved = prepare_cells(cells, screen.preparing, gpu=gpu)
        for note in sorted({cell.data_source.note for cell in resolved}):
            screen.note(note)
        # The job would name another cell if the automatic device were another there.
        asked = [
            msgspec.structs.replace(request, device=cell.config.device)
            for request, cell in zip(cells, resolved, strict=True)
        ]
        yield from run_as_jobs(asked, resolved, out, self.options, screen.note, again=again, restarts=self.restarts)


class _Silent:
    """A screen in a job, where nobody watches."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show nothing."""

    def training(self, header: Header, run: RunDirectory) -> AbstractContextManager[Path]:
        """Show nothing."""
        return scratch_folder()


@dataclass(frozen=True, kw_only=True)
class CellJob:
    """The work of a job: one cell.

    Attributes:
        out: the results directory. again: whether to run it from the start. restarts: as `Here` takes them.
    """

    request: RunRequest
    out: str
    again: bool
    restarts: int = 0

    def __call__(self) -> str | None:
        """Run the cell; returns the reason of a failure, or None. A job that Slurm queued again resumes it."""
        again = self.again and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
        try:
            (outcome,) = Here(restarts=self.restarts).run([self.request], Path(self.out), again, _Silent())
        except (UserError, RunFailed) as error:
            return str(error)
        except KeyboardInterrupt:
            return _INTERRUPTED
        return None if outcome.failure is None else str(outcome.failure)

    def checkpoint(self) -> Any:
        """The job that submitit queues when this one reaches its time limit; it resumes the cell."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(dataclasses.replace(self, again=False))


def run_as_jobs(
    requests: Sequence[RunRequest],
    cells: Sequence[Header],
    out: Path,
    options: SlurmOptions,
    say: Say,
    *,
    again: bool = False,
    restarts: int = 0,
) -> Iterator[Outcome]:
    """Run every cell of `requests`, resolved as `cells`, as a job, and yield the outcome of each as it ends.

    A finished cell gets no job, unless `again`. If Slurm still has a job of an earlier call, this call waits for
    it. Cells that Slurm has no room for are submitted as other jobs end.

    Raises:
        UserError: if submitit or Slurm is missing, Slurm takes no job at all, or `out` cannot be written.
        KeyboardInterrupt: after a signal.
        Before both, a line names the jobs that Slurm keeps; jobs of other executors are killed.
    """
    require_no_link(out / "slurm", "choose another --out")
    noted = Noted(out)
    _require_submitit()
    submission = Submission(lambda: _executor(out, options), noted, say)
    try:
        for request, cell in zip(requests, cells, strict=True):
            name = cell.cell
            if not again and (known := _without_job(cell, out)) is not None:
                yield known
            elif job := noted.find(name, options.executor):
                submission.jobs[name] = job
            else:
                submission.left[name] = CellJob(
                    request=request, out=str(out.resolve()), again=again, restarts=restarts
                )
        submission.more(len(submission.jobs))
        for name, failure in _collect(submission.jobs, submission.more):
            run, error = RunDirectory.of(out, name), RunFailed(failure) if failure else None
            yield Outcome(cell=name, run=run, failure=error)
        for name, failure in submission.failures.items():
            yield Outcome(cell=name, failure=RunFailed(failure))
    except (KeyboardInterrupt, UserError):
        _leave(submission.jobs, options, say)
        raise


def _require_submitit() -> None:
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise UserError("--slurm needs submitit, which is not installed: pip install submitit") from None


def _executor(out: Path, options: SlurmOptions) -> Any:
    """An executor of submitit, with a new directory for its jobs.

    Raises:
        UserError: this machine has no Slurm, or `out` cannot be written.
    """
    import submitit

    # Without accounting in Slurm, it warns at every look at the jobs.
    logging.getLogger("submitit").setLevel(logging.ERROR)
    with write_errors(out / "slurm"):
        # A new directory of this user alone: submitit reads pickles, and those that lie in a results folder are
        # another person's.
        (out / "slurm").mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="jobs-", dir=out / "slurm")
        try:
            executor = submitit.AutoExecutor(
                folder=f"{folder}/%j", cluster=options.executor, slurm_max_num_timeout=_MOST_TIMEOUTS
            )
        except RuntimeError:
            Path(folder).rmdir()
            raise UserError(
                "this machine has no `srun`; use --slurm on a machine of the Slurm cluster, or "
                "--slurm executor=local"
            ) from None
    wanted = {
        "slurm_partition": options.partition,
        "slurm_account": options.account,
        "slurm_qos": options.qos,
        "slurm_constraint": options.constraint,
        "cpus_per_task": options.cpus,
        "gpus_per_node": options.gpus,
        "mem_gb": options.memory_gb,
        "slurm_additional_parameters": {"requeue": True},  # if its machine fails, the job resumes on another
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    executor.update_parameters(name="istbench", timeout_min=options.minutes, nodes=1, tasks_per_node=1, **given)
    return executor


def _collect(jobs: dict[str, Any], more: Callable[[int], int]) -> Iterator[tuple[str, str | None]]:
    """Wait for all jobs; yield the name of each as it ends, and the reason if it failed.

    `more` gets the number of jobs that have not ended. It may add to `jobs`, and returns the number of jobs that it
    will add later.
    """
    ended: set[str] = set()
    queue = Queue()
    while True:
        to_come = more(len(jobs) - len(ended))
        for name, job in list(jobs.items()):
            if name in ended:
                continue
            gone = not job.done() and _is_slurms(job) and queue.lacks(str(job.job_id))
            if not gone and not job.done():
                continue
            ended.add(name)
            if isinstance(job, EarlierJob):
                yield name, job.failure()
            else:
                yield name, _gone(job) if gone else _failure(job)
        if len(ended) == len(jobs) and not to_come:
            return
        time.sleep(_LOOKS_EVERY_S)


def _failure(job: Any) -> str | None:
    """The reason why the job failed; None if it did its work."""
    error = job.exception()
    if error is None:
        answer: str | None = job.result()
        return answer
    lines = _reason(str(error))
    last = printable(lines[-1])[:300] if lines else type(error).__name__
    return f"job {job.job_id} ended: {last}; its output is in {job.paths.folder}"


def _reason(text: str) -> list[str]:
    """The lines of an error of submitit, or of the traceback that it puts between lines of dashes, before paths."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    rules = [number for number, line in enumerate(lines) if re.fullmatch("-{20,}", line)]
    traced = bool(lines) and lines[0].endswith("with trace:") and len(rules) > 1
    return lines[rules[0] + 1 : rules[-1]] if traced else lines


def _is_slurms(job: Any) -> bool:
    import submitit

    return isinstance(job, submitit.SlurmJob | EarlierJob)


def _gone(job: Any) -> str:
    return (
        f"job {job.job_id} left the queue without a result: it was cancelled or its machine failed; its output is "
        f"in {job.paths.folder}, and the same command submits it again"
    )


def _leave(jobs: dict[str, Any], options: SlurmOptions, say: Say) -> None:
    alive = [job for job in jobs.values() if not job.done()] if options.executor != "debug" else []
    if options.executor == "slurm":
        queued = queued_jobs() if alive else None
        identities = [str(job.job_id) for job in alive if queued is None or str(job.job_id) in queued]
        if identities:
            ends = f"`scancel {' '.join(identities)}` ends them"
            say(f"{len(identities)} jobs keep running, and the same command waits for them; {ends}")
        return
    for job in alive:
        job.cancel()


def _without_job(cell: Header, out: Path) -> Outcome | None:
    """The outcome of a cell that is done, or whose run directory cannot be read; None if it needs a job."""
    from istbench.launch.cells.execute import is_finished

    run = RunDirectory.of(out, cell.cell)
    try:
        return Outcome(cell=cell.cell, run=run, fresh=False) if is_finished(cell, run) else None
    except UserError as error:
        return Outcome(cell=cell.cell, run=run, failure=error)


class _Refused(Exception):  # noqa: N818  (it says what happened to a job)
    """Slurm did not take a job; the message is Slurm's."""


class Submission:
    """Submits cells to Slurm, which may limit the number of jobs at a time.

    `make` makes the executor of submitit, at the first submission.

    Attributes:
        jobs: by cell, the submitted jobs. left: by cell, the jobs to submit.
        failures: by cell, the reason why Slurm never took it.
    """

    def __init__(self, make: Callable[[], Any], noted: "Noted", say: Callable[[str], None]) -> None:
        self.jobs: dict[str, Any] = {}
        self.left: dict[str, Callable[[], str | None]] = {}
        self.failures: dict[str, str] = {}
        self._make, self._noted, self._say = make, noted, say
        self._executor: Any = None
        self._alive = self._named = 0
        self._next = self._until = -math.inf
        self._told = False

    def more(self, alive: int) -> int:
        """Submit the remaining jobs if Slurm may take them; returns the number of cells that still wait.

        `alive` is the number of jobs that have not ended.

        Raises:
            UserError: if Slurm takes none, and took none before.
        """
        now = time.monotonic()
        if alive:
            self._until = now + _PATIENCE_S
        if alive < self._alive:
            self._next = min(self._next, now + _SETTLES_S)
        self._alive = alive
        if self.left and now >= self._next:
            self._submit(now)
        self._name_jobs()
        return len(self.left)

    def _submit(self, now: float) -> None:
        if self._executor is None:
            self._executor = self._make()
        try:
            for name, job in list(self.left.items()):
                self.jobs[name] = _submitted(self._executor, job)
                self._alive, self._until = self._alive + 1, now + _PATIENCE_S
                del self.left[name]
                self._noted.add(name, str(self.jobs[name].job_id))
        except _Refused as refused:
            self._name_jobs()
            self._put_off(str(refused), now)

    def _name_jobs(self) -> None:
        new = [str(job.job_id) for job in self.jobs.values()][self._named :]
        if new:
            self._say(f"{counted(len(new), 'job')}: {' '.join(new)}")
        self._named = len(self.jobs)

    def _put_off(self, said: str, now: float) -> None:
        if not self.jobs:
            raise UserError(f"Slurm took no job: {said}; see the options of --slurm")
        if not self._alive and now >= self._until:
            self.failures.update(dict.fromkeys(self.left, f"Slurm refused its job: {said}"))
            self.left.clear()
            return
        self._next = math.inf if self._alive else now + _SETTLES_S
        if not self._told:
            self._told = True
            self._say(f"{len(self.left)} cells wait until other jobs end; Slurm takes no more: {said}")


def _submitted(executor: Any, job: Callable[[], str | None]) -> Any:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        with no_code_from_here():
            return executor.submit(job)
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise _Refused(printable(" ".join(str(error).split()))[:400]) from None


@dataclass(frozen=True)
class EarlierJob:
    """A job of an earlier command on the cell of `run`.

    The results folder names it. So only Slurm's queue and the run directory tell how it ended, and no pickle.
    """

    job_id: str
    run: RunDirectory

    def done(self) -> bool:
        """False: until Slurm no longer has the job, the run directory may be of a job before."""
        return False

    def failure(self) -> str | None:
        """The reason of the failure once Slurm no longer has the job; None for a run that is done."""
        with contextlib.suppress(UserError):
            header = self.run.header()
            if header.status == "done":
                return None
            if header.error:
                return header.error
        return f"job {self.job_id} left the queue without a result; the same command submits it again"


@dataclass
class Noted:
    """The submitted jobs, by cell, in a file in results directory `out`."""

    out: Path

    @property
    def path(self) -> Path:
        """The file."""
        return self.out / "slurm" / "jobs.json"

    def find(self, name: str, executor: str) -> EarlierJob | None:
        """The job of a cell that Slurm still has; None if there is none.

        Raises:
            UserError: if the file is unreadable, or Slurm does not tell.
        """
        identity = self._read().get(name)
        if identity is None or executor != "slurm":
            return None
        queued = queued_jobs()
        if queued is None:
            raise UserError(
                f"squeue does not answer, and Slurm may still have job {identity} of {name}; try again later, or "
                f"delete {self.path} after all of its jobs have ended"
            )
        return EarlierJob(identity, RunDirectory.of(self.out, name)) if identity in queued else None

    def add(self, name: str, identity: str) -> None:
        """Note the job of a cell."""
        text = json.dumps({**self._read(), name: identity}, indent=1)
        with write_errors(self.path), writing_whole(self.path) as file:
            file.write(text.encode())

    def _read(self) -> dict[CellName, _JobId]:
        if not self.path.exists():
            return {}
        content = read_bytes(self.path, "the jobs of a results directory")
        way_out = "delete it after all of its jobs have ended"
        return decode_json(content, dict[CellName, _JobId], str(self.path), way_out)


def queued_jobs() -> set[str] | None:
    """Identities of this user's jobs in Slurm's queue; None if Slurm does not answer."""
    try:
        asked = ["squeue", "--noheader", "--format=%A", f"--user={getpass.getuser()}"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_SQUEUE_S)
    except (OSError, KeyError, subprocess.TimeoutExpired):
        return None
    return set(done.stdout.split()) if done.returncode == 0 else None


class Queue:
    """The queue over time. A job that is not in it for half a minute is gone."""

    def __init__(self) -> None:
        self._asked = -_QUEUE_EVERY_S
        self._jobs: set[str] | None = None
        self._since: dict[str, float] = {}

    def lacks(self, identity: str) -> bool:
        """Whether job `identity` has been out of the queue for so long that it will give no result."""
        now = time.monotonic()
        if now - self._asked >= _QUEUE_EVERY_S:
            self._asked, self._jobs = now, queued_jobs()
        if self._jobs is None or identity in self._jobs:
            self._since.pop(identity, None)
            return False
        return now - self._since.setdefault(identity, now) >= _GONE_S
