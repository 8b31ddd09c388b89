"""Detached cells without processes: what the first host answers, and what it is believed."""

import fcntl
import os
from contextlib import ExitStack

import msgspec
import pytest

from istbench.base.errors import RunFailed
from istbench.base.options.run import RunRequest
from istbench.launch.hosts import detach as detaching
from istbench.launch.hosts.detached import (
    JOB,
    PID,
    CellReport,
    CellState,
    DetachedJob,
    report_detached,
    write_states,
)
from istbench.launch.hosts.run import HostsRun, run_named_by

FAILED = CellState(phase="failed", cell="cell", message="it diverged")
RUNNING = CellState(phase="running", cell="cell")


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Makes jobs on this machine, each with states of cells and an ssh key; its process may work."""
    monkeypatch.setenv("ISTBENCH_CACHE", str(tmp_path))
    with ExitStack() as stack:

        def made(name, states, *, works=False, started=True):
            folder = tmp_path / "detached" / name
            folder.mkdir(parents=True)
            (folder / JOB).write_bytes(msgspec.json.encode(DetachedJob(cells=[], out="there", pythons=[])))
            (folder / "key-1").touch()
            write_states(folder, states)
            if started:
                (folder / PID).touch()
            if works:
                descriptor = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            return folder

        yield made


def report(key="a"):
    return report_detached(None, {"key": key, "offset": 0})


def test_a_taken_cell_is_reported_as_long_as_its_job_works(job):
    states = {"a": msgspec.structs.replace(FAILED, taken=True), "b": RUNNING}
    job("1", states)
    assert report() is None
    job("2", states, works=True)
    assert report()["state"]["message"] == "it diverged"


def test_a_killed_job_leaves_no_ssh_key_and_one_that_works_or_starts_keeps_it(job):
    folders = job("1", {}), job("2", {}, works=True), job("3", {}, started=False)
    assert report() is None
    assert [len(list(folder.glob("key-*"))) for folder in folders] == [0, 1, 1]


class First:
    """A first host that reports `states` one after another, and then no job."""

    name = "host0"

    def __init__(self, *states):
        self.states, self.taken = list(states), False

    def do(self, what, **_):
        if what == "take_detached":
            self.taken = True
            return None
        assert what == "report_detached"
        if not self.states:
            return None
        return msgspec.to_builtins(CellReport(state=self.states.pop(0), out="there", lines=[], offset=0))


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Follows the cell of a first host, which shares the results directory; returns the names of its cell."""
    monkeypatch.setattr(detaching, "_POLL_S", 0)

    def followed(first, match):
        run, names = HostsRun(request=RunRequest(workload="toy", method="ist"), out=tmp_path), []
        following = detaching._Following(first, run, True, lambda _: None, names.append)
        with pytest.raises(RunFailed, match=match):
            following.to_end(detaching._report(first, run), False)
        return names

    return followed


def test_a_followed_cell_is_named_before_its_failure_is_raised(follow):
    first = First(CellState(), RUNNING, FAILED)
    assert follow(first, "^it diverged$") == ["cell"]
    assert first.taken


def test_a_followed_cell_that_vanishes_ends_the_following(follow):
    first = First(RUNNING)
    follow(
        first, "^host0: the detached cell has ended without a result, or another .*; run the same command again$"
    )
    assert not first.taken


def test_a_first_host_that_names_another_directory_is_not_believed(follow, tmp_path):
    assert (
        follow(
            First(CellState(phase="running", cell="..")),
            "^host0: the name of a cell must match .*, not '..'; leave this host out$",
        )
        == []
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../b", "/b", "b/", "b\0"])
def test_a_name_of_a_cell_is_one_component_of_a_path(name, tmp_path):
    with pytest.raises(RunFailed, match="^host0: the name of a cell must .*; leave this host out$"):
        run_named_by("host0", name, tmp_path)


def test_a_right_name_of_a_cell_is_its_run_directory(tmp_path):
    name = "my.task-ist-n2-s1-0123abcd"
    assert run_named_by("host0", name, tmp_path).path == tmp_path / "runs" / name
