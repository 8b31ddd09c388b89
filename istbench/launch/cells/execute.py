"""Train one cell to its end, and record in its run directory how it ended."""

import contextlib
import dataclasses
import functools
import shutil
import time
from functools import reduce
from pathlib import Path

import msgspec

from istbench.base.errors import RunFailed, UserError
from istbench.launch.cells.restarts import Members, Restarts, loss
from istbench.launch.processes.failures import (
    LOGS,
    MORE_NODES,
    MoreNodes,
    WorkerLost,
    activity_path,
    read_progress,
    same_command,
)
from istbench.launch.processes.launcher import Job, Launcher, launch
from istbench.node.checkpoint_steps import MANIFEST, NoneWhole, Totals, newest
from istbench.node.destinations import place_of
from istbench.node.stopping import GrowRequest, StopRequest
from istbench.node.weights_file import require_saved
from istbench.node.worker import train_cell
from istbench.results.curves import Curve
from istbench.results.events import Loss, Resize, Resume, Return, RunPart, Start, digest_with
from istbench.results.header import Header
from istbench.results.metrics import Metric
from istbench.results.store import RunDirectory, time_now, wait_for_space

_FROM_BEGINNING = "--again starts it from the beginning"


def execute(
    cell: Header,
    run: RunDirectory,
    scratch: Path,
    launcher: Launcher,
    *,
    again: bool = False,
    restarts: int = 0,
    reason: Loss | Return | None = None,
    present: int | None = None,
) -> bool:
    """Train `cell` in `run`, from its checkpoint if it has one; returns False if it was done already.

    Args:
        scratch: an empty directory for the output and progress of the workers. A run that fails keeps the output.
        launcher: starts the nodes. again: delete the files in `run` and start from the beginning.
        restarts: how often all nodes start again from the last checkpoint after a loss (`Restarts`).
        reason: the loss after which this command itself was started again, or the nodes that are back.
        present: nodes of an elastic run, if another command chooses them.

    Raises:
        UserError: for bad input that showed during training, or a run directory that cannot be written.
        RunFailed: if a worker died, and no restart is left; the run is marked failed.
        KeyboardInterrupt: after Ctrl-C; the run is marked interrupted, and resumes when run again. If training had
            already ended, the run is marked done; if it failed by itself, failed, and the failure is the cause.
    """
    if not again and is_finished(cell, run):
        return False
    with run.locked():
        for sink in cell.config.sinks or ():
            place_of(sink, run)
        if again:
            run.clear()
        if not run.is_done():
            members = Members.of(cell.config) if present is None else Members(present, present, 0.0)
            _execute(cell, run, scratch, launcher, Restarts(restarts), reason, members)
            return True
    return not is_finished(cell, run)  # by another command, before this one had the lock


def is_finished(cell: Header, run: RunDirectory) -> bool:
    """Whether `run` is done. It then records the trials that chose the options of `cell`.

    Raises:
        UserError: if it lacks the weights that `cell` wants saved.
    """
    if not run.is_done():
        return False
    if cell.config.save is not None:
        require_saved(run, Path(cell.config.save))
    _note_tuned(cell, run)
    return True


def _execute(
    cell: Header,
    run: RunDirectory,
    scratch: Path,
    launcher: Launcher,
    restarts: Restarts,
    reason: Loss | Return | None,
    members: Members,
) -> None:
    job = training_job(run.path, scratch, cell, members.nodes)
    resize = None if cell.config.elastic is None else _since_checkpoint(run, members.nodes, reason)
    _open(cell, run, reason if isinstance(reason, Loss) else None, resize)
    run.reserve()
    try:
        while (again := _launched(launcher, job, run, scratch, restarts, members)) is not None:
            job = dataclasses.replace(job, nodes=members.nodes)
            wait_for_space(functools.partial(_open, cell, run, *again))
    except KeyboardInterrupt as interrupt:
        failure = interrupt.__cause__
        if isinstance(failure, UserError | RunFailed):
            run.end("failed", str(failure))
            _keep_logs(job.logs, run.logs)
        elif _has_result(run):  # the signal came after the training
            _finish(run)
        else:
            run.end("interrupted", None)
        raise
    except MoreNodes:
        run.end("interrupted", None)
        raise
    except (UserError, RunFailed) as error:
        if isinstance(error, WorkerLost):
            step, _ = _checkpointed(run) or (0, 0.0)
            error = error.with_way_out(same_command(step))
        run.end("failed", str(error))
        _keep_logs(job.logs, run.logs)
        raise error from None
    _finish(run)


def training_job(run: Path, scratch: Path, header: Header, nodes: int) -> Job:
    """The job that trains the cell of `header` in directory `run` on so many nodes; see `train_cell`."""
    return Job(
        target=train_cell,
        args=(str(run), str(scratch), header),
        nodes=nodes,
        threads=header.threads,
        logs=scratch / LOGS,
        timeout_s=header.config.timeout_s,
        stop=StopRequest(scratch),
    )


def _launched(
    launcher: Launcher, job: Job, run: RunDirectory, scratch: Path, restarts: Restarts, members: Members
) -> tuple[Loss | None, Resize | None] | None:
    """Run `job` to its end; returns None, or the loss and the change of `members` after which it starts again.

    Other failures are raised.
    """
    began = time.time()
    again: tuple[Loss | None, Resize | None]
    GrowRequest(scratch).set(members.back_at)
    try:
        launch(launcher, job)
    except WorkerLost as failure:
        last, (step, at) = read_progress(scratch), _checkpointed(run) or (0, began)
        if not restarts.allow(max(last.step, step)):
            raise restarts.ended(failure) from None
        heard = run.events_jsonl.stat().st_mtime
        found = loss(failure, last, (step, at), heard)
        again = found, _changed(members, failure.nodes, failure.what, found.noticed)
    else:
        if _has_result(run) or run.header().config.elastic is None:
            return None
        change = _changed(members, 0, "lost nodes are back", time.time())
        if change is None:
            raise MoreNodes(MORE_NODES)
        again = None, change
    activity_path(job.logs, 0).unlink(missing_ok=True)
    StopRequest(scratch).forget_workers()
    return again


def _changed(members: Members, lost: int, cause: str, now: float) -> Resize | None:
    """Let nodes leave and join `members`, once there are enough; returns the change, None if there is none."""
    before = members.nodes
    members.lose(lost, now)
    time.sleep(members.seconds_short(now))
    members.take_back(time.time())
    after = members.nodes
    return None if after == before else Resize(before=before, after=after, cause=cause, noticed=now)


def _finish(run: RunDirectory) -> None:
    """Record that `run` is done, and delete its checkpoint."""
    run.end("done", None)
    shutil.rmtree(run.checkpoint, ignore_errors=True)


def _has_result(run: RunDirectory) -> bool:
    """Whether rank 0 recorded the result, after training and after saving the weights. `_open` clears it."""
    try:
        return run.header().result is not None
    except UserError:
        return False


def _note_tuned(cell: Header, run: RunDirectory) -> None:
    """Record the trials that chose the options, if the cell was trained before a tuning chose them too."""
    trials = cell.config.tuned
    if trials and trials != (config := run.header().config).tuned:
        with run.locked():
            run.update(config=msgspec.structs.replace(config, tuned=trials))


def _open(cell: Header, run: RunDirectory, lost: Loss | None = None, resize: Resize | None = None) -> None:
    """Begin a part of the run: `lost` and `resize` are the loss and the change after which it starts by itself."""
    now = time_now()
    part = RunPart(host=cell.host, threads=cell.threads, versions=cell.versions, git=cell.git)
    damage = ""
    try:
        step = newest(run.checkpoint)
    except NoneWhole as none:
        if lost is None:
            raise
        step, damage = None, none.damage
        shutil.rmtree(run.checkpoint, ignore_errors=True)
    if not run.exists():
        if step is not None:
            raise UserError(f"{run.path} has a checkpoint, and no {run.run_json.name}; {_FROM_BEGINNING}")
        run.create(msgspec.structs.replace(cell, started_at=now))
        run.append(Start(time=now, part=part))
        if lost is not None:  # rank 0's host is gone, with all that the run had written
            run.append(Resume(step=-1, time=now, part=part, loss=lost, resize=resize))
        return
    before = run.own_header()
    if step is not None:
        if before.timing_rule != cell.timing_rule:
            raise UserError(
                f"{run.path} was begun under timing rule {before.timing_rule}, and this istbench uses rule "
                f"{cell.timing_rule}; {_FROM_BEGINNING}"
            )
        _require_evaluations(run, before.own_metric, step.totals)
    run.create(msgspec.structs.replace(cell, started_at=before.started_at))
    # A worker that finds a damaged checkpoint adds the step from which the run really resumes.
    number = step.totals.step if step else -1
    run.append(Resume(step=number, time=now, part=part, damage=damage, loss=lost, resize=resize))


def _since_checkpoint(run: RunDirectory, nodes: int, reason: Loss | Return | None) -> Resize | None:
    """The change from the nodes that wrote the checkpoint to `nodes`, with which a command begins."""
    try:
        step = newest(run.checkpoint)
    except NoneWhole:  # `_open` reports it
        return None
    if step is None or step.ranks == nodes:
        return None
    found = reason or Return(cause=f"a command resumed the run on {nodes} nodes", noticed=time.time())
    return Resize(before=step.ranks, after=nodes, cause=found.cause, noticed=found.noticed)


def _require_evaluations(run: RunDirectory, metric: Metric, saved: Totals) -> None:
    """Check that the events of `run` hold the evaluations up to its checkpoint; later ones are made again.

    Raises:
        UserError: with the number of evaluations that are there.
    """
    found = [event for event in Curve.from_events(run.events(), metric).evaluations if event.step <= saved.step]
    digest = reduce(digest_with, found, "")
    if (len(found), digest) != (saved.evaluations, saved.evaluations_sha256):
        count = f"{len(found)} evaluations, not {saved.evaluations},"
        held = count if len(found) != saved.evaluations else "other evaluations than the run made"
        raise UserError(
            f"{run.events_jsonl} holds {held} up to the checkpoint of step {saved.step}; put the file back, or "
            f"{_FROM_BEGINNING}"
        )


def _checkpointed(run: RunDirectory) -> tuple[int, float] | None:
    """Step and time of the last checkpoint of `run`, None if there is none."""
    try:
        step = newest(run.checkpoint)
    except UserError:
        return None
    return None if step is None else (step.totals.step, (step.folder / MANIFEST).stat().st_mtime)


def _keep_logs(logs: Path, kept: Path) -> None:
    shutil.rmtree(kept, ignore_errors=True)
    with contextlib.suppress(OSError, shutil.Error):
        shutil.copytree(logs, kept)
