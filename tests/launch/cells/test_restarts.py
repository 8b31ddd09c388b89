"""Restarts after a loss, with launchers that only pretend to train."""

import os
from pathlib import Path

import pytest
from fake_runs import RESULT, evaluation, resume
from published_steps import publish_step, write_step
from toy_cell import HEADER, names_of

from istbench.base.activity import Activity, Progress
from istbench.base.errors import RunFailed, UserError, diverged
from istbench.launch.cells.execute import execute
from istbench.launch.cells.restarts import Restarts, loss, restarted
from istbench.launch.processes.failures import LOGS, PeersLost, WorkerLost, activity_path, may_go_on
from istbench.results.events import Loss, Ready, Resume
from istbench.results.run_parts import changes, restarts
from istbench.results.store import RunDirectory

KILLED = WorkerLost("worker 1 was killed by SIGKILL", "; its last lines:\n  so")


@pytest.mark.parametrize(
    ("allowed", "steps", "allows"),
    [
        (0, [5], [False]),
        (1, [5, 9], [True, False]),
        (9, [5, 9, 12, 15, 18], [True] * 5),
        (9, [5, 5, 5], [True, True, False]),
        (9, [5, 4, 6], [True, True, False]),  # the ranks were a step apart
        (9, [20, 15, 18, 20], [True] * 4),  # lost at random
        (9, [5, 5, 8, 8, 8], [True, True, True, True, False]),
        (9, [0, 0, 0], [True, True, False]),  # lost while they started
    ],
)
def test_a_run_starts_again_as_often_as_allowed_and_not_after_three_losses_at_a_step(allowed, steps, allows):
    left = Restarts(allowed)
    assert [left.allow(step) for step in steps] == allows


def test_the_last_failure_says_what_was_tried():
    left = Restarts(0)
    assert not left.allow(5)
    assert str(left.ended(KILLED)) == str(KILLED)
    left = Restarts(1)
    assert left.allow(5)
    assert not left.allow(7)
    assert str(left.ended(KILLED)) == (
        "worker 1 was killed by SIGKILL; it was restarted once, as --restarts allows; its last lines:\n  so"
    )
    left = Restarts(9)
    assert [left.allow(7) for _ in range(3)] == [True, True, False]
    assert str(left.ended(KILLED)) == (
        "worker 1 was killed by SIGKILL; this is loss 3 in a row at step 7, so --restarts tries no more; its last "
        "lines:\n  so"
    )


@pytest.mark.parametrize(
    ("last", "saved", "heard", "redone", "noticing_s", "redone_s"),
    [
        (Progress(40, 90.0, 50.0), (30, 80.0), 85.0, 10, 10.0, 10.0),
        (Progress(40, 90.0, 50.0), (30, 80.0), 95.0, 10, 5.0, 15.0),  # it evaluated after the last step
        (Progress(40, 90.0, 82.0), (30, 40.0), 85.0, 10, 10.0, 8.0),  # the checkpoint is of an earlier part
        (Progress(30, 90.0, 50.0), (30, 95.0), 95.0, 0, 5.0, 0.0),
        (Progress(), (0, 20.0), 20.0, 0, 80.0, 0.0),  # lost before any worker was ready
        (Progress(40, 190.0, 150.0), (30, 180.0), 185.0, 10, 0.0, 0.0),  # the clock was set back
    ],
)
def test_a_loss_costs_the_steps_since_the_checkpoint_and_the_time_to_notice_it(
    monkeypatch, last, saved, heard, redone, noticing_s, redone_s
):
    monkeypatch.setattr("istbench.launch.cells.restarts.time.time", lambda: 100.0)
    assert loss(KILLED, last, saved, heard) == Loss(
        cause="worker 1 was killed by SIGKILL", noticed=100.0, noticing_s=noticing_s, redone_steps=redone,
        redone_s=redone_s,
    )  # fmt: skip


class Scripted:
    """A launcher whose workers train to each of the steps in turn and end as the `outcomes` say."""

    def __init__(self, *outcomes, saves=True):
        self.outcomes, self.jobs, self.saves = list(outcomes), [], saves

    def start(self, job):
        self.jobs.append(job)
        return self

    def wait(self):
        step, outcome = self.outcomes.pop(0)
        run_path, scratch, _ = self.jobs[-1].args
        run = RunDirectory(Path(run_path))
        file, activity = activity_path(Path(scratch, LOGS), 0), Activity()
        file.parent.mkdir(parents=True, exist_ok=True)
        activity.share(file)
        activity.start()
        activity.finish(step)
        if self.saves and outcome is not None:
            write_step(run.checkpoint, step - 1, {"rank-0.json": b"{}"})
            publish_step(run.checkpoint, step - 1)
        if outcome is None:
            run.append(evaluation(step, 1.0, 0.5))
            run.update(result=RESULT)
            return
        raise outcome

    def end(self):
        pass


def test_a_lost_run_goes_on_from_its_checkpoint_with_an_event_each_time(run, scratch):
    launcher = Scripted((5, KILLED), (9, PeersLost("worker 0 failed: it lost worker 1")), (12, None))
    assert execute(HEADER, run, scratch, launcher, restarts=2)
    assert len(launcher.jobs) == 3
    assert run.header().status == "done"
    assert names_of(run.events()) == ["start", "resume", "resume", "evaluation", "stop"]
    first, second = (event for event in run.events() if isinstance(event, Resume))
    assert (first.step, first.loss.cause, first.loss.redone_steps) == (4, "worker 1 was killed by SIGKILL", 1)
    assert (second.step, second.loss.cause, second.loss.redone_steps) == (8, "worker 0 failed: it lost worker 1", 1)
    assert not run.logs.exists()


def test_a_run_without_a_checkpoint_starts_again_from_step_0(run, scratch):
    assert execute(HEADER, run, scratch, Scripted((5, KILLED), (12, None), saves=False), restarts=1)
    (resume,) = (event for event in run.events() if isinstance(event, Resume))
    assert (resume.step, resume.loss.redone_steps) == (-1, 5)


def test_a_run_whose_record_went_with_its_host_begins_with_the_loss(run, scratch):
    lost = Loss(cause="a is gone", noticed=1.0, noticing_s=30.0, redone_steps=7, redone_s=2.0)
    assert execute(HEADER, run, scratch, Scripted((12, None)), reason=lost)
    assert names_of(run.events()) == ["start", "resume", "evaluation", "stop"]
    (restart,) = restarts(run.events())
    assert (restart.step, restart.cause, restart.seconds) == (0, "a is gone", 32.0)


def test_a_run_that_is_lost_too_often_fails_with_the_last_loss(run, scratch):
    launcher = Scripted((5, KILLED), (9, KILLED), (12, None))
    with pytest.raises(WorkerLost) as failure:
        execute(HEADER, run, scratch, launcher, restarts=1)
    said = (
        "worker 1 was killed by SIGKILL; it was restarted once, as --restarts allows; the same command resumes "
        "from the checkpoint of step 8; its last lines:\n  so"
    )
    assert str(failure.value) == run.header().error == said
    assert names_of(run.events()) == ["start", "resume", "fault", "stop"]


def test_three_losses_at_one_step_end_the_run_with_one_line(run, scratch):
    launcher = Scripted(*[(5, PeersLost("worker 1 is gone"))] * 9)
    with pytest.raises(WorkerLost) as failure:
        execute(HEADER, run, scratch, launcher, restarts=9)
    assert len(launcher.jobs) == 3
    assert str(failure.value) == (
        "worker 1 is gone; this is loss 3 in a row at step 5, so --restarts tries no more; the same "
        "command resumes from the checkpoint of step 4"
    )


@pytest.mark.parametrize(("steps", "may"), [((5, 5), False), ((5, 6), False), ((5, 9), True)])
def test_a_second_pass_may_help_unless_the_last_losses_were_at_one_step(run, scratch, steps, may):
    with pytest.raises(WorkerLost, match="it was restarted once, as --restarts allows") as failure:
        execute(HEADER, run, scratch, Scripted(*((step, KILLED) for step in steps)), restarts=1)
    assert may_go_on(failure.value) is may


@pytest.mark.parametrize(
    "failure",
    [
        UserError("no such file; name another"),
        RunFailed("worker 0 ran out of memory"),
        diverged(float("nan"), "step 7 on node 1"),
        RunFailed("worker 1 failed while computing training step 4: ValueError: no good"),
        KeyboardInterrupt("SIGINT"),
    ],
)
def test_what_is_no_loss_is_not_tried_again(run, scratch, failure):
    launcher = Scripted((5, failure), (12, None))
    with pytest.raises(type(failure)):
        execute(HEADER, run, scratch, launcher, restarts=9)
    assert len(launcher.jobs) == 1


def test_a_run_whose_checkpoints_are_all_damaged_starts_again_from_step_0(run, scratch):
    class Damaging(Scripted):
        def wait(self):
            try:
                super().wait()
            finally:
                for path in self.own.glob("*/rank-0.json"):
                    os.truncate(path, 0)

    launcher = Damaging((5, KILLED), (9, UserError("no more")))
    launcher.own = run.checkpoint
    with pytest.raises(UserError, match="no more"):
        execute(HEADER, run, scratch, launcher, restarts=9)
    (resume,) = (event for event in run.events() if isinstance(event, Resume))
    assert (resume.step, resume.loss.cause) == (-1, KILLED.what)
    assert resume.damage.endswith("and no older one is whole; the run starts again from step 0")
    # The user may have a copy of it.
    with pytest.raises(UserError, match="is broken .* delete .* to start the cell again from step 0$"):
        execute(HEADER, run, scratch, launcher, restarts=9)
    assert run.checkpoint.exists()


def test_the_record_of_a_run_tells_its_restarts_and_their_seconds():
    lost = Loss(cause="worker 1 was killed", noticed=10.0, noticing_s=1.0, redone_steps=300, redone_s=6.0)
    again = Loss(cause="worker 0 was killed", noticed=30.0, noticing_s=0.5, redone_steps=20, redone_s=0.5)
    events = [
        evaluation(0, 0.0, 0.1), resume(-1, loss=lost), Ready(step=0, starting_s=2.0, loading_s=0.0),
        evaluation(400, 1.0, 0.2), resume(400, loss=again), Ready(step=350, starting_s=1.5, loading_s=0.25),
        resume(350, damage="a checkpoint is broken"), resume(380),
    ]  # fmt: skip
    assert [(one.step, one.seconds) for one in restarts(events)] == [(0, 9.0), (350, 2.75)]
    assert changes(events[:3]) == [
        "restarted once after a loss, 9.0 s outside its clocks (noticing 1.0, starting 2.0, loading 0.0, 300 steps "
        "again 6.0): worker 1 was killed"
    ]
    assert changes(events) == [
        "restarted 2 times after a loss, 11.8 s outside its clocks (noticing 1.5, starting 3.5, loading 0.2, 320 "
        "steps again 6.5): the last time worker 0 was killed"
    ]


def test_a_restart_from_outside_has_the_cause_that_the_run_recorded(run, scratch):
    metric = HEADER.own_metric
    assert restarted(run, metric, "torchrun") is None, "nothing was lost before the first start"
    with pytest.raises(WorkerLost):
        execute(HEADER, run, scratch, Scripted((5, KILLED)))
    lost = restarted(run, metric, "torchrun")
    assert (lost.cause, lost.redone_steps) == (KILLED.what, 0)
    run.update(status="running", error=None)  # the process that could tell was killed too
    run.append(evaluation(9, 3.0, 0.5))
    lost = restarted(run, metric, "torchrun")
    assert (lost.cause, lost.redone_steps) == ("torchrun started all processes again", 5)
    run.update(status="done", result=RESULT)
    assert restarted(run, metric, "torchrun") is None
