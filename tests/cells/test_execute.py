"""What becomes of a run directory, with a launcher that only pretends to train."""

import fcntl
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from fake_runs import evaluation, header
from published_steps import publish_step, write_step

from istbench.cells.execute import execute
from istbench.cells.resolve import Cell
from istbench.door import decode_own
from istbench.errors import RunFailed, UserError
from istbench.processes.failures import WorkerLost
from istbench.results.events import Resume, Start
from istbench.results.header import TIMING_RULE, Git, Header, HostRecord, Result
from istbench.results.store import RunDirectory

HEAD = header("ist", nodes=3, status="running", result=None, workload="toy")
HEAD["config"]["threads"] = 2
HEADER = msgspec.convert(HEAD, Header, dec_hook=decode_own)
CELL = Cell(name="toy-ist", config=HEADER.config, header=HEADER)


class Pretended:
    """A launcher whose workers record one evaluation and end with `outcome`; keeps the jobs it was given."""

    def __init__(self, outcome=None):
        self.outcome, self.jobs = outcome, []

    def start(self, job):
        self.jobs.append(job)
        return self

    def wait(self):
        run_path, _ = self.jobs[-1].args
        RunDirectory(Path(run_path)).append(evaluation(5, 1.0, 0.5))
        self.jobs[-1].logs.mkdir()
        (self.jobs[-1].logs / "stderr.log").write_text("what it said")
        if self.outcome is not None:
            raise self.outcome

    def end(self):
        pass


@pytest.fixture
def run(tmp_path):
    return RunDirectory.of(tmp_path, CELL.name)


@pytest.fixture
def scratch(tmp_path):
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def names_of(events):
    return [type(event).__name__.lower() for event in events]


def test_a_job_is_the_cell_on_its_nodes(run, scratch):
    launcher = Pretended()
    assert execute(CELL, run, scratch, launcher)
    (job,) = launcher.jobs
    assert (job.nodes, job.threads, job.args) == (3, 2, (str(run.path), str(scratch)))
    assert run.header().status == "done"
    assert names_of(run.events()) == ["start", "evaluation", "stop"]
    assert not run.logs.exists()


def test_a_done_run_is_not_run_again_unless_asked(run, scratch):
    execute(CELL, run, scratch, Pretended())
    shutil.rmtree(scratch / "logs")
    launcher = Pretended()
    assert not execute(CELL, run, scratch, launcher)
    assert launcher.jobs == []
    (run.path / "checkpoint").mkdir()
    (run.path / "checkpoint" / "rank-0.safetensors").write_text("of old")
    assert execute(CELL, run, scratch, launcher, again=True)
    assert names_of(run.events()) == ["start", "evaluation", "stop"]


def test_an_interrupted_run_goes_on(run, scratch):
    with pytest.raises(KeyboardInterrupt):
        execute(CELL, run, scratch, Pretended(KeyboardInterrupt()))
    assert run.header().status == "interrupted"
    shutil.rmtree(scratch / "logs")
    assert execute(CELL, run, scratch, Pretended())
    assert names_of(run.events()) == ["start", "evaluation", "stop", "resume", "evaluation", "stop"]


RESULT = Result(
    steps=5, samples=80, train_s=1.0, wall_s=2.0, final={"accuracy": 0.5}, bytes_sent_per_node=0,
    bytes_received_per_node=0,
)  # fmt: skip


class Finishing(Pretended):
    """The same, whose workers also record the result of the run."""

    def wait(self):
        run = RunDirectory(Path(self.jobs[-1].args[0]))
        assert run.header().result is None, "a part of a run begins without the result of another"
        run.update(result=RESULT)
        super().wait()


def test_a_run_whose_training_had_ended_at_the_signal_is_done(run, scratch):
    with pytest.raises(KeyboardInterrupt):
        execute(CELL, run, scratch, Pretended(KeyboardInterrupt()))
    assert run.header().status == "interrupted"
    shutil.rmtree(scratch / "logs")
    run.update(result=RESULT)
    write_step(run.checkpoint, 3, {"rank-0.json": b"{}"})
    publish_step(run.checkpoint, 3)
    with pytest.raises(KeyboardInterrupt):
        execute(CELL, run, scratch, Finishing(KeyboardInterrupt()))
    assert (run.header().status, run.header().result) == ("done", RESULT)
    assert names_of(run.events())[-1] == "stop"
    assert not run.checkpoint.exists()
    launcher = Pretended()
    assert not execute(CELL, run, scratch, launcher)
    assert launcher.jobs == []


def test_a_failure_behind_a_signal_is_recorded(run, scratch):
    interrupt = KeyboardInterrupt("SIGINT")
    interrupt.__cause__ = UserError("cannot write the checkpoint: No space left on device")
    with pytest.raises(KeyboardInterrupt):
        execute(CELL, run, scratch, Pretended(interrupt))
    assert (run.header().status, run.header().error) == ("failed", str(interrupt.__cause__))


def test_every_part_of_a_run_says_where_it_ran(run, scratch):
    with pytest.raises(KeyboardInterrupt):
        execute(CELL, run, scratch, Pretended(KeyboardInterrupt()))
    shutil.rmtree(scratch / "logs")
    other = msgspec.structs.replace(
        HEADER, host=HostRecord(name="other"), versions={"torch": "9"}, git=Git("abc", True)
    )
    assert execute(Cell(name=CELL.name, config=HEADER.config, header=other), run, scratch, Pretended())
    parts = [event.part for event in run.events() if isinstance(event, Start | Resume)]
    assert [part.host.name for part in parts] == ["laptop", "other"]
    assert [part.versions for part in parts] == [HEADER.versions, {"torch": "9"}]
    assert [part.git for part in parts] == [None, Git("abc", True)]


def test_a_run_of_another_timing_rule_is_not_gone_on_with(run, scratch):
    with pytest.raises(KeyboardInterrupt):
        execute(CELL, run, scratch, Pretended(KeyboardInterrupt()))
    shutil.rmtree(scratch / "logs")
    run.update(timing_rule=HEADER.timing_rule - 1)
    write_step(run.checkpoint, 5, {})
    publish_step(run.checkpoint, 5)
    before, launcher = run.run_json.read_bytes(), Pretended()
    with pytest.raises(
        UserError,
        match=rf"^\S+ was begun under timing rule {TIMING_RULE - 1}, .* rule {TIMING_RULE}; "
        "--again starts it from the beginning$",
    ):
        execute(CELL, run, scratch, launcher)
    assert run.run_json.read_bytes() == before
    assert execute(CELL, run, scratch, launcher, again=True)
    assert run.header().timing_rule == HEADER.timing_rule
    assert len(launcher.jobs) == 1


def test_a_failed_run_says_why_and_keeps_what_its_workers_said(run, scratch):
    with pytest.raises(RunFailed, match="worker 1 was killed"):
        execute(CELL, run, scratch, Pretended(RunFailed("worker 1 was killed")))
    assert (run.header().status, run.header().error) == ("failed", "worker 1 was killed")
    assert names_of(run.events()) == ["start", "evaluation", "fault", "stop"]
    assert (run.logs / "stderr.log").read_text() == "what it said"


@pytest.mark.parametrize(
    ("step", "way_out"),
    [(0, "starts from step 0: no checkpoint was written yet"), (3, "resumes from the checkpoint of step 3")],
)
def test_a_lost_worker_is_said_with_what_the_same_command_does(run, scratch, step, way_out):
    if step:
        write_step(run.checkpoint, step, {"rank-0.json": b"{}"})
        publish_step(run.checkpoint, step)
    with pytest.raises(RunFailed) as failure:
        execute(CELL, run, scratch, Pretended(WorkerLost("worker 1 is gone", "; its last lines:\n  so")))
    said = f"worker 1 is gone; the same command {way_out}; its last lines:\n  so"
    assert str(failure.value) == run.header().error == said


class Reserving(Pretended):
    """The same, that looks for the space in which the end of the run is to be written."""

    def wait(self):
        run = RunDirectory(Path(self.jobs[-1].args[0]))
        assert (run.path / "reserve.tmp").stat().st_size > run.run_json.stat().st_size + 4000
        super().wait()


def test_space_is_reserved_while_a_run_goes_on_and_given_back(run, scratch):
    with pytest.raises(RunFailed):
        execute(CELL, run, scratch, Reserving(RunFailed("no")))
    assert not (run.path / "reserve.tmp").exists()


@pytest.mark.parametrize("again", [False, True])
def test_a_run_in_progress_is_left_alone(run, scratch, again):
    run.create(CELL.header)
    run.append(Start())
    before = {path.name: path.read_text() for path in run.path.iterdir()}
    other = os.open(run.path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        with pytest.raises(UserError, match="another istbench is running toy-ist in .*; wait for it"):
            execute(CELL, run, scratch, Pretended(), again=again)
    finally:
        os.close(other)
    assert {path.name: path.read_text() for path in run.path.iterdir()} == before


def test_running_anew_deletes_nothing_behind_a_link(run, scratch, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("")
    run.path.parent.mkdir()
    run.path.symlink_to(elsewhere)
    with pytest.raises(UserError, match="toy-ist is a symbolic link"):
        execute(CELL, run, scratch, Pretended(), again=True)
    run.path.unlink()
    run.path.mkdir()
    (run.path / "trace.npz").symlink_to(elsewhere / "kept")
    (run.path / "logs").symlink_to(elsewhere)
    assert execute(CELL, run, scratch, Pretended(), again=True)
    assert (elsewhere / "kept").exists()


def test_what_cannot_be_deleted_is_named(run, scratch, monkeypatch):
    execute(CELL, run, scratch, Pretended())

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(
        UserError, match="cannot delete .*toy-ist.* to run the cell again: Permission denied; choose another"
    ):
        execute(CELL, run, scratch, Pretended(), again=True)
