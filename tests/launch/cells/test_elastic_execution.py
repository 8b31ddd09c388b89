"""Runs that go on with fewer nodes and with more again, with launchers that only pretend to train."""

import dataclasses
import time
from pathlib import Path

import msgspec
import pytest
from fake_runs import RESULT, evaluation
from published_steps import publish_step, write_step
from test_refused_cells import prepare
from toy_cell import HEADER

from istbench.base.errors import UserError
from istbench.base.options.elastic import Elastic
from istbench.base.options.run import RunRequest
from istbench.launch.backends.here import Here
from istbench.launch.backends.slurm import Slurm
from istbench.launch.cells.execute import execute
from istbench.launch.cells.restarts import Members
from istbench.launch.processes.failures import MoreNodes, PeersLost, WorkerLost
from istbench.results.events import Loss, Ready, Resume, Return
from istbench.results.run_parts import changes, resizes, restarts
from istbench.results.store import RunDirectory

KILLED = WorkerLost("worker 1 was killed by SIGKILL")
TWO_KILLED = WorkerLost("worker 1 was killed by SIGKILL", nodes=2)
CUT = PeersLost("worker 0 failed: it lost worker 1")


def test_a_lost_node_is_back_after_some_seconds_and_then_joins():
    members = Members(2, 4, back_s=30.0)
    assert (members.nodes, members.back_at) == (4, None)
    members.lose(1, 100.0)
    members.lose(1, 110.0)
    assert (members.nodes, members.back_at, members.seconds_short(111.0)) == (2, 130.0, 0.0)
    members.take_back(129.0)
    assert members.nodes == 2
    members.take_back(131.0)
    assert (members.nodes, members.back_at) == (3, 140.0)
    members.take_back(200.0)
    assert (members.nodes, members.back_at) == (4, None)


def test_a_run_waits_for_its_least_number_of_nodes():
    members = Members(2, 4, back_s=30.0)
    members.lose(3, 100.0)
    assert (members.nodes, members.seconds_short(110.0)) == (1, 20.0)
    members.take_back(130.0)
    assert members.nodes == 4
    members.lose(9, 200.0)
    assert (members.nodes, members.seconds_short(200.0)) == (0, 30.0)


def test_without_elastic_no_node_is_lost():
    members = Members(4, 4, back_s=30.0)
    members.lose(3, 100.0)
    assert (members.nodes, members.seconds_short(100.0), members.back_at) == (4, 0.0, None)


class Clock:
    """Stands for `time`: it stands still, and sleeps at once."""

    began = ahead_s = 0.0

    @classmethod
    def time(cls):
        return cls.began + cls.ahead_s

    @classmethod
    def sleep(cls, seconds):
        cls.ahead_s += seconds


class Scripted:
    """A launcher whose jobs get to a step and end: with an error, for the group to grow (`more`), or done."""

    def __init__(self, *ends):
        self.ends, self.jobs, self.may_grow = list(ends), [], []

    def start(self, job):
        self.jobs.append(job)
        return self

    def wait(self):
        run_path, scratch, _ = self.jobs[-1].args
        run = RunDirectory(Path(run_path))
        self.may_grow.append(Path(scratch, "grow").exists())
        step, end = self.ends.pop(0)
        names = [f"rank-{rank}.json" for rank in range(self.jobs[-1].nodes)]
        write_step(run.checkpoint, step, dict.fromkeys(names, b"{}"))
        publish_step(run.checkpoint, step)
        if end == "more":
            Clock.sleep(60.0)
            return
        if end is not None:
            raise end
        run.append(evaluation(step, 1.0, 0.5))
        run.update(result=RESULT)

    def end(self):
        pass


@pytest.fixture
def cell():
    config = msgspec.structs.replace(HEADER.config, elastic=Elastic(1, 3))
    return msgspec.structs.replace(HEADER, config=config)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    for room in ("execute", "restarts"):
        monkeypatch.setattr(f"istbench.launch.cells.{room}.time", Clock)
    Clock.began, Clock.ahead_s = time.time() // 1, 0.0  # its sums are exact


def sizes(run):
    return [(one.step, one.before, one.after, one.cause) for one in resizes(run.events())]


def test_a_run_goes_on_with_who_is_left_and_grows_again(cell, run, scratch):
    launcher = Scripted((5, KILLED), (9, "more"), (12, None))
    assert execute(cell, run, scratch, launcher, restarts=1)
    assert [job.nodes for job in launcher.jobs] == [3, 2, 3]
    assert launcher.may_grow == [False, True, False]
    assert sizes(run) == [(5, 3, 2, str(KILLED)), (9, 2, 3, "lost nodes are back")]
    (restart,) = restarts(run.events())  # a larger group is no loss
    assert restart.cause == str(KILLED)
    assert run.header().status == "done"


def test_nodes_that_are_lost_together_count_each_and_a_cut_link_loses_none(cell, run, scratch):
    launcher = Scripted((5, TWO_KILLED), (9, CUT), (12, None))
    assert execute(cell, run, scratch, launcher, restarts=2)
    assert [job.nodes for job in launcher.jobs] == [3, 1, 1]
    assert sizes(run) == [(5, 3, 1, str(TWO_KILLED))]


def test_a_run_without_enough_nodes_waits_for_them(cell, run, scratch):
    everyone = WorkerLost("worker 0 was killed by SIGKILL", nodes=3)
    assert execute(cell, run, scratch, launcher := Scripted((5, everyone), (12, None)), restarts=1)
    assert Clock.ahead_s == 10.0
    assert [job.nodes for job in launcher.jobs] == [3, 3]
    assert sizes(run) == []


def test_a_command_goes_on_with_all_nodes(cell, run, scratch):
    with pytest.raises(WorkerLost):
        execute(cell, run, scratch, Scripted((5, KILLED), (9, KILLED)), restarts=1)
    assert execute(cell, run, scratch, launcher := Scripted((12, None)), restarts=1)
    assert [job.nodes for job in launcher.jobs] == [3]
    assert sizes(run)[-1] == (9, 2, 3, "a command resumed the run on 3 nodes")


def test_a_run_whose_nodes_another_command_chooses_stops_for_more_of_them(cell, run, scratch):
    lost = Loss(cause="b is gone", noticed=1.0, noticing_s=2.0, redone_steps=0, redone_s=0.0)
    with pytest.raises(WorkerLost):
        execute(cell, run, scratch, Scripted((5, KILLED)), present=3)
    launcher = Scripted((9, "more"))
    with pytest.raises(MoreNodes):
        execute(cell, run, scratch, launcher, present=2, reason=lost)
    assert run.header().status == "interrupted"
    back = Return(cause="b can be reached again", noticed=2.0)
    assert execute(cell, run, scratch, more := Scripted((12, None)), present=3, reason=back)
    assert [job.nodes for job in (*launcher.jobs, *more.jobs)] == [2, 3]
    assert sizes(run) == [(5, 3, 2, "b is gone"), (9, 2, 3, "b can be reached again")]


def test_the_record_tells_the_seconds_of_each_change(cell, run, scratch):
    execute(cell, run, scratch, Scripted((5, KILLED), (9, "more"), (12, None)), restarts=1)
    events, ready = [], Ready(step=5, starting_s=2.0, loading_s=0.5)
    for event in run.events():
        events += [event, ready] if isinstance(event, Resume) else [event]
    first, second = resizes(events)
    assert first.seconds == restarts(events)[0].seconds >= 2.5
    assert second.seconds == 2.5
    line = next(line for line in changes(events) if line.startswith("on 3 nodes"))
    assert "from step 5 on 2 (worker 1 was killed by SIGKILL), from step 5 on 3 (lost nodes are back)" in line


@pytest.mark.parametrize("text", ["2", "2:2", "4:2", "0:2", "two:4", ":4", "2:4:6", "2:99999999", "٢:٤"])
def test_what_is_no_range_of_nodes_is_refused(text):
    with pytest.raises(UserError, match=r"^elastic must be two numbers of nodes MIN:MAX.*, such as 2:4, not "):
        RunRequest(workload="toy", method="ddp", nodes=4, elastic=text)


def test_the_largest_number_is_that_of_the_run():
    with pytest.raises(UserError, match=r"at most 4 nodes, and the run has 3; give --nodes 4, or --elastic 2:3$"):
        RunRequest(workload="toy", method="ddp", nodes=3, elastic="2:4")


def test_an_elastic_run_is_a_cell_of_its_own():
    fixed, elastic = prepare("ist", nodes=4), prepare("ist", nodes=4, elastic="2:4")
    assert "elastic-n2-4" in elastic.cell
    assert fixed.cell != elastic.cell
    assert elastic.method_label == "ist elastic=2:4"
    assert "--elastic=2:4" in elastic.config.request().arguments()


@pytest.mark.parametrize(
    ("method", "fields", "reason"),
    [
        (
            "dslide",
            {"workload": "amazon670k"},
            "dslide cannot take over the checkpoint of another number",
        ),
        ("local_sgd", {"method_options": {"group": 2}}, "--elastic 2:4, with 3 nodes: "),
        ("ist", {"method_options": {"coverage": 3}}, "--elastic 2:4, with 2 nodes: coverage=3 needs as many nodes"),
    ],
)
def test_methods_that_cannot_train_on_each_number_are_refused(method, fields, reason):
    with pytest.raises(UserError, match=reason):
        prepare(method, nodes=4, elastic="2:4", **fields)


def test_places_that_keep_their_nodes_refuse_it():
    request = RunRequest(workload="toy", method="ddp", nodes=4, elastic="2:4")
    with pytest.raises(UserError, match=r"goes on after a loss by --restarts; give --restarts 10"):
        Here().fit(request)
    assert Here(restarts=1).fit(request) == request
    lab = dataclasses.make_dataclass("Lab", ["nodes", "host_nodes"])(4, 1)
    with pytest.raises(UserError, match=r"a lab keeps the number of nodes; leave --elastic out"):
        Here(restarts=1, lab=lab).fit(request)
    with pytest.raises(UserError, match=r"--slurm keeps the number of nodes; leave --elastic out"):
        Slurm.fit(dataclasses.make_dataclass("Job", ["chosen_by"])("--slurm"), request)
