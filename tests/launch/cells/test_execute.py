"""What becomes of a run directory, with a launcher that only pretends to train."""

import fcntl
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from fake_runs import RESULT, evaluation, start
from garbage import one_line
from published_steps import publish_step, write_step
from toy_cell import HEADER, names_of

from istbench.base.errors import RunFailed, UserError
from istbench.launch.cells.execute import execute
from istbench.launch.processes.failures import WorkerLost
from istbench.results.events import Resume, Start
from istbench.results.header import TIMING_RULE, Git, HostRecord
from istbench.results.store import OfAnotherCell, RunDirectory


class Pretended:
    """A launcher whose workers record one evaluation and end with `outcome`; keeps the jobs it was given."""

    def __init__(self, outcome=None):
        self.outcome, self.jobs = outcome, []

    def start(self, job):
        self.jobs.append(job)
        return self

    def wait(self):
        run_path, *_ = self.jobs[-1].args
        run = RunDirectory(Path(run_path))
        run.append(evaluation(5, 1.0, 0.5))
        if self.outcome is None:
            run.update(result=RESULT)
        self.jobs[-1].logs.mkdir()
        (self.jobs[-1].logs / "stderr.log").write_text("what it said")
        if self.outcome is not None:
            raise self.outcome

    def end(self):
        pass


def test_a_job_is_the_cell_on_its_nodes(run, scratch):
    launcher = Pretended()
    assert execute(HEADER, run, scratch, launcher)
    (job,) = launcher.jobs
    assert (job.nodes, job.threads, job.args) == (3, 2, (str(run.path), str(scratch), HEADER))
    assert run.header().status == "done"
    assert names_of(run.events()) == ["start", "evaluation", "stop"]
    assert not run.logs.exists()


def test_a_done_run_is_not_run_again_unless_asked(run, scratch):
    execute(HEADER, run, scratch, Pretended())
    shutil.rmtree(scratch / "logs")
    launcher = Pretended()
    assert not execute(HEADER, run, scratch, launcher)
    assert launcher.jobs == []
    (run.path / "checkpoint").mkdir()
    (run.path / "checkpoint" / "rank-0.safetensors").write_text("of old")
    assert execute(HEADER, run, scratch, launcher, again=True)
    assert names_of(run.events()) == ["start", "evaluation", "stop"]


def test_an_interrupted_run_goes_on(run, scratch):
    with pytest.raises(KeyboardInterrupt):
        execute(HEADER, run, scratch, Pretended(KeyboardInterrupt()))
    assert run.header().status == "interrupted"
    shutil.rmtree(scratch / "logs")
    assert execute(HEADER, run, scratch, Pretended())
    assert names_of(run.events()) == ["start", "evaluation", "stop", "resume", "evaluation", "stop"]


def stopped_at(run, scratch, step):
    """Interrupt the run after one evaluation, with a checkpoint of `step`."""
    with pytest.raises(KeyboardInterrupt):
        execute(HEADER, run, scratch, Pretended(KeyboardInterrupt()))
    shutil.rmtree(scratch / "logs")
    write_step(run.checkpoint, step, {"rank-0.json": b"{}"})
    publish_step(run.checkpoint, step, [evaluation(5, 1.0, 0.5)])


def test_a_run_resumes_after_the_evaluations_that_its_checkpoint_has_seen(run, scratch):
    stopped_at(run, scratch, 7)
    run.append(evaluation(10, 2.0, 0.6))  # after the checkpoint: it is made again
    with run.events_jsonl.open("ab") as file:
        file.write(b'{"event":"evalua')  # torn by `kill -9`
    assert execute(HEADER, run, scratch, Pretended())
    assert [event.step for event in run.events() if isinstance(event, Resume)] == [7]


LOST = {
    "no events": lambda run: run.events_jsonl.unlink(),
    "no line": lambda run: run.events_jsonl.write_bytes(b""),
    "fewer": lambda run: run.events_jsonl.write_bytes(
        b"".join(line for line in run.events_jsonl.read_bytes().splitlines(True) if b'"evaluation"' not in line)
    ),
    "others": lambda run: run.events_jsonl.write_bytes(run.events_jsonl.read_bytes().replace(b"0.5}", b"0.6}")),
    "more before it": lambda run: run.append(evaluation(6, 1.2, 0.5)),
    "a new start": lambda run: run.append(start()),
}


@pytest.mark.parametrize("kind", LOST)
def test_a_run_whose_evaluations_are_lost_is_refused_until_again(run, scratch, kind):
    stopped_at(run, scratch, 7)
    LOST[kind](run)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as refused:
        execute(HEADER, run, scratch, Pretended())
    held = {"others": "other evaluations than the run made", "more before it": "2 evaluations, not 1,"}
    held = held.get(kind, "0 evaluations, not 1,")
    assert one_line(refused.value) == (
        f"{run.events_jsonl} holds {held} up to the checkpoint of step 7; put the "
        "file back, or --again starts it from the beginning"
    )
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    assert execute(HEADER, run, scratch, Pretended(), again=True)


def test_a_checkpoint_without_a_header_is_refused(run, scratch):
    stopped_at(run, scratch, 7)
    run.run_json.unlink()
    with pytest.raises(UserError, match="has a checkpoint, and no run.json; --again starts it from the beginning$"):
        execute(HEADER, run, scratch, Pretended())


OTHER = HEADER.cell.replace("s0", "s1")
# By kind: what is put in place of its own, and the file that names the other cell.
PARTS = {
    "run": ("", "run.json"),
    "done": ("", "run.json"),
    "header": ("run.json", "run.json"),
    "checkpoint": ("checkpoint", "checkpoint/9/manifest.json"),
    "newer step": ("checkpoint/9", "checkpoint/9/manifest.json"),
    "older step": ("checkpoint/7", "checkpoint/7/manifest.json"),
    "manifest": ("checkpoint/9/manifest.json", "checkpoint/9/manifest.json"),
}


def of_another_cell(run, scratch, kind):
    """Put parts of the run of seed 1 into that of seed 0; returns the file that names the other cell."""
    other = RunDirectory.of(run.path.parent.parent, OTHER)
    cells = [(HEADER, run), (msgspec.structs.replace(HEADER, cell=OTHER), other)]
    for cell, directory in cells:
        with pytest.raises(KeyboardInterrupt):
            execute(cell, directory, scratch, Pretended(KeyboardInterrupt()))
        shutil.rmtree(scratch / "logs")
        for step in (7, 9):
            write_step(directory.checkpoint, step, {"rank-0.json": b"{}"})
            publish_step(directory.checkpoint, step, [evaluation(5, 1.0, 0.5)])
    if kind == "done":
        other.update(status="done", result=RESULT)
    part, named = PARTS[kind]
    target, source = run.path / part, other.path / part
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
    return run.path / named


@pytest.mark.parametrize("kind", PARTS)
def test_parts_of_another_cell_are_refused_until_again(run, scratch, kind):
    named = of_another_cell(run, scratch, kind)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    launcher = Pretended()
    with pytest.raises(OfAnotherCell) as refused:
        execute(HEADER, run, scratch, launcher)
    assert one_line(refused.value) == (
        f"{named} is of cell {OTHER} and lies in the directory of {HEADER.cell}; move it back, or start "
        f"{HEADER.cell} from the beginning with --again"
    )
    assert launcher.jobs == []
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    assert execute(HEADER, run, scratch, launcher, again=True)
    assert run.own_header().status == "done"


class Finishing(Pretended):
    """The same, whose workers also record the result of the run."""

    def wait(self):
        run = RunDirectory(Path(self.jobs[-1].args[0]))
        assert run.header().result is None, "a part of a run begins without the result of another"
        run.update(result=RESULT)
        super().wait()


def test_a_run_whose_training_had_ended_at_the_signal_is_done(run, scratch):
    stopped_at(run, scratch, 7)
    run.update(result=RESULT)
    with pytest.raises(KeyboardInterrupt):
        execute(HEADER, run, scratch, Finishing(KeyboardInterrupt()))
    assert (run.header().status, run.header().result) == ("done", RESULT)
    assert names_of(run.events())[-1] == "stop"
    assert not run.checkpoint.exists()
    launcher = Pretended()
    assert not execute(HEADER, run, scratch, launcher)
    assert launcher.jobs == []


def test_a_failure_behind_a_signal_is_recorded(run, scratch):
    interrupt = KeyboardInterrupt("SIGINT")
    interrupt.__cause__ = UserError("cannot write the checkpoint: No space left on device")
    with pytest.raises(KeyboardInterrupt):
        execute(HEADER, run, scratch, Pretended(interrupt))
    assert (run.header().status, run.header().error) == ("failed", str(interrupt.__cause__))


def test_every_part_of_a_run_says_where_it_ran(run, scratch):
    with pytest.raises(KeyboardInterrupt):
        execute(HEADER, run, scratch, Pretended(KeyboardInterrupt()))
    shutil.rmtree(scratch / "logs")
    other = msgspec.structs.replace(
        HEADER, host=HostRecord(name="other", cores=None, machine=""), versions={"torch": "9"}, git=Git("abc", True)
    )
    assert execute(other, run, scratch, Pretended())
    parts = [event.part for event in run.events() if isinstance(event, Start | Resume)]
    assert [part.host.name for part in parts] == ["laptop", "other"]
    assert [part.versions for part in parts] == [HEADER.versions, {"torch": "9"}]
    assert [part.git for part in parts] == [None, Git("abc", True)]


def test_a_run_of_another_timing_rule_is_not_gone_on_with(run, scratch):
    stopped_at(run, scratch, 7)
    run.update(timing_rule=HEADER.timing_rule - 1)
    before, launcher = run.run_json.read_bytes(), Pretended()
    with pytest.raises(
        UserError,
        match=rf"^\S+ was begun under timing rule {TIMING_RULE - 1}, .* rule {TIMING_RULE}; "
        "--again starts it from the beginning$",
    ):
        execute(HEADER, run, scratch, launcher)
    assert run.run_json.read_bytes() == before
    assert execute(HEADER, run, scratch, launcher, again=True)
    assert run.header().timing_rule == HEADER.timing_rule
    assert len(launcher.jobs) == 1


def test_a_failed_run_says_why_and_keeps_what_its_workers_said(run, scratch):
    with pytest.raises(RunFailed, match="worker 1 was killed"):
        execute(HEADER, run, scratch, Pretended(RunFailed("worker 1 was killed")))
    assert (run.header().status, run.header().error) == ("failed", "worker 1 was killed")
    assert names_of(run.events()) == ["start", "evaluation", "fault", "stop"]
    assert (run.logs / "stderr.log").read_text() == "what it said"


@pytest.mark.parametrize(
    ("step", "way_out"),
    [(0, "starts from step 0: no checkpoint was written yet"), (7, "resumes from the checkpoint of step 7")],
)
def test_a_lost_worker_is_said_with_what_the_same_command_does(run, scratch, step, way_out):
    if step:
        stopped_at(run, scratch, step)
    with pytest.raises(RunFailed) as failure:
        execute(HEADER, run, scratch, Pretended(WorkerLost("worker 1 is gone", "; its last lines:\n  so")))
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
        execute(HEADER, run, scratch, Reserving(RunFailed("no")))
    assert not (run.path / "reserve.tmp").exists()


@pytest.mark.parametrize("again", [False, True])
def test_a_run_in_progress_is_left_alone(run, scratch, again):
    run.create(HEADER)
    run.append(start())
    before = {path.name: path.read_text() for path in run.path.iterdir()}
    other = os.open(run.path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        with pytest.raises(UserError, match="another istbench is running toy-ist-n3-s0 in .*; wait for it"):
            execute(HEADER, run, scratch, Pretended(), again=again)
    finally:
        os.close(other)
    assert {path.name: path.read_text() for path in run.path.iterdir()} == before


LINKED = [
    "",
    "run.json",
    "events.jsonl",
    "trace.npz",
    "checkpoint",
    "checkpoint/7",
    "logs",
    "logs/rank0",
    "logs/rank0/stdout",
    "reserve.tmp",
    "..",
    "../../mllog",
]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", LINKED)
def test_nothing_is_trained_written_or_deleted_behind_a_link(run, scratch, tmp_path, name, again):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run.create(HEADER)
    run.run_json.rename(elsewhere / "kept")
    run.path.rmdir()
    run.path.parent.rmdir()
    link = Path(os.path.normpath(run.path / name))
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere / "kept" if link.suffix == ".json" else elsewhere)
    cell = msgspec.structs.replace(HEADER, config=msgspec.structs.replace(HEADER.config, sinks=("mllog",)))
    with pytest.raises(UserError, match=f"{link} is a symbolic link, .*; delete it, or (choose|name) an"):
        execute(cell, run, scratch, Pretended(), again=again)
    assert [path.name for path in elsewhere.iterdir()] == ["kept"]
    link.unlink()
    assert execute(cell, run, scratch, Pretended(), again=again)


def test_events_that_have_another_name_are_left_alone(run, scratch, tmp_path):
    (tmp_path / "kept").write_text("precious")
    run.path.mkdir(parents=True)
    os.link(tmp_path / "kept", run.events_jsonl)
    with pytest.raises(UserError, match=r"events\.jsonl is a hard link, .*; put a copy in its place, or"):
        execute(HEADER, run, scratch, Pretended())
    assert (tmp_path / "kept").read_text() == "precious"


def test_what_cannot_be_deleted_is_named(run, scratch, monkeypatch):
    execute(HEADER, run, scratch, Pretended())

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(
        UserError, match="cannot delete .*toy-ist.* to run the cell again: Permission denied; choose another"
    ):
        execute(HEADER, run, scratch, Pretended(), again=True)
