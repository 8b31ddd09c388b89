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
        pairs = given.get("slurm")
        return cls(options=SlurmOptions.parse(pairs)) if pairs else None

    def restarting(self, restarts: int, *, typed: bool) -> "Slurm":
        return dataclasses.replace(self, restarts=restarts)

    def run(self, cells: Sequence[RunRequest], out: Path, again: bool, screen: Screen) -> Iterator[Outcome]:
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
        pass

    def preparing(self, what: str, done: int, total: int) -> None:
        pass

    def training(self, header: Header, run: RunDirectory) -> AbstractContextManager[Path]:
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
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise UserError("--slurm needs submitit, which is not installed: pip install submitit") from None
    noted = _noted(out) if options.executor == "slurm" else {}
    submission = Submission(out, options, say)
    try:
        for request, cell in zip(requests, cells, strict=True):
            name = cell.cell
            if not again and (known := _without_job(cell, out)) is not None:
                yield known
            elif name in noted and (queued := submission.queue.has(noted[name])) is None:
                raise UserError(
                    f"squeue does not answer, and Slurm may still have job {noted[name]} of {name}; try again "
                    f"later, or delete {_notes(out)} after all of its jobs have ended"
                )
            elif name in noted and queued:
                submission.jobs[name] = EarlierJob(noted[name], RunDirectory.of(out, name))
            else:
                submission.left[name] = CellJob(
                    request=request, out=str(out.resolve()), again=again, restarts=restarts
                )
        for name, failure in submission.endings():
            run = RunDirectory.of(out, name) if name in submission.jobs else None
            yield Outcome(cell=name, run=run, failure=RunFailed(failure) if failure else None)
    except (KeyboardInterrupt, UserError):
        _leave(submission.jobs, options, say)
        raise


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


def _failure(job: Any, gone: bool = False) -> str | None:
    """The reason why the job failed, or is `gone` from the queue; None if it did its work."""
    if isinstance(job, EarlierJob):
        return job.failure()
    if gone:
        return (
            f"job {job.job_id} left the queue without a result: it was cancelled or its machine failed; its output "
            f"is in {job.paths.folder}, and the same command submits it again"
        )
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


class Submission:
    """Submits cells to Slurm, which may limit the number of jobs at a time, and waits for their ends.

    Attributes:
        jobs: by cell, the submitted jobs. left: by cell, the jobs to submit. queue: of Slurm.
    """

    def __init__(self, out: Path, options: SlurmOptions, say: Say) -> None:
        self.jobs: dict[str, Any] = {}
        self.left: dict[str, Callable[[], str | None]] = {}
        self.queue = Queue()
        self._refused: dict[str, str] = {}  # by cell, why Slurm never took it
        self._out, self._options, self._say = out, options, say
        self._executor: Any = None
        self._alive = self._named = 0
        self._next = self._until = -math.inf
        self._told = False

    def endings(self) -> Iterator[tuple[str, str | None]]:
        """Submit all cells; yield the name of each as its job ends, and the reason if it failed.

        Raises:
            UserError: if Slurm takes no job at all.
        """
        import submitit

        ended = set[str]()
        while self.left or len(ended) < len(self.jobs):
            self.more(len(self.jobs) - len(ended))
            for name, job in list(self.jobs.items()):
                if name in ended:
                    continue
                done, slurms = job.done(), isinstance(job, submitit.SlurmJob | EarlierJob)
                gone = not done and slurms and self.queue.lacks(str(job.job_id))
                if done or gone:
                    ended.add(name)
                    yield name, _failure(job, gone)
            if self.left or len(ended) < len(self.jobs):
                time.sleep(_LOOKS_EVERY_S)
        yield from self._refused.items()

    def more(self, alive: int) -> None:
        """Submit the remaining jobs if Slurm may take them; `alive` jobs have not ended."""
        now = time.monotonic()
        if alive:
            self._until = now + _PATIENCE_S
        if alive < self._alive:
            self._next = min(self._next, now + _SETTLES_S)
        self._alive = alive
        if self.left and now >= self._next:
            self._submit(now)
        self._name_jobs()

    def _submit(self, now: float) -> None:
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        if self._executor is None:
            self._executor = _executor(self._out, self._options)
        try:
            for name, job in list(self.left.items()):
                with no_code_from_here():
                    self.jobs[name] = self._executor.submit(job)
                self._alive, self._until = self._alive + 1, now + _PATIENCE_S
                del self.left[name]
                _note(self._out, name, str(self.jobs[name].job_id))
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            self._name_jobs()
            self._put_off(printable(" ".join(str(error).split()))[:400], now)

    def _name_jobs(self) -> None:
        new = [str(job.job_id) for job in self.jobs.values()][self._named :]
        if new:
            self._say(f"{counted(len(new), 'job')}: {' '.join(new)}")
        self._named = len(self.jobs)

    def _put_off(self, said: str, now: float) -> None:
        if not self.jobs:
            raise UserError(f"Slurm took no job: {said}; see the options of --slurm")
        if not self._alive and now >= self._until:
            self._refused.update(dict.fromkeys(self.left, f"Slurm refused its job: {said}"))
            self.left.clear()
            return
        self._next = math.inf if self._alive else now + _SETTLES_S
        if not self._told:
            self._told = True
            self._say(f"{len(self.left)} cells wait until other jobs end; Slurm takes no more: {said}")


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


def _notes(out: Path) -> Path:
    """The file of results directory `out` with the submitted jobs, by cell."""
    return out / "slurm" / "jobs.json"


def _noted(out: Path) -> dict[CellName, _JobId]:
    path = _notes(out)
    if not path.exists():
        return {}
    content = read_bytes(path, "the jobs of a results directory")
    return decode_json(content, dict[CellName, _JobId], str(path), "delete it after all of its jobs have ended")


def _note(out: Path, name: str, identity: str) -> None:
    text, path = json.dumps({**_noted(out), name: identity}, indent=1), _notes(out)
    with write_errors(path), writing_whole(path) as file:
        file.write(text.encode())


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

    def has(self, identity: str) -> bool | None:
        """Whether job `identity` was in it in the last ten seconds; None if Slurm does not answer."""
        now = time.monotonic()
        if now - self._asked >= _QUEUE_EVERY_S:
            self._asked, self._jobs = now, queued_jobs()
        return None if self._jobs is None else identity in self._jobs

    def lacks(self, identity: str) -> bool:
        """Whether job `identity` has been out of the queue for so long that it will give no result."""
        now = time.monotonic()
        if self.has(identity) is not False:
            self._since.pop(identity, None)
            return False
        return now - self._since.setdefault(identity, now) >= _GONE_S
