"""Detached cells without processes: the answers of the first host, and the names that this machine accepts."""

import fcntl
import io
import json
import os
import queue
import sys
from contextlib import ExitStack

import msgspec
import pytest

from istbench.base.errors import RunFailed
from istbench.base.options.run import RunRequest
from istbench.base.options.texts import LONGEST_MESSAGE
from istbench.launch.hosts import detached_job, remote_detached
from istbench.launch.hosts.agent_program import Agent
from istbench.launch.hosts.connection import Event, Frame, Lost
from istbench.launch.hosts.detached import _Detached
from istbench.launch.hosts.remote_detached import (
    DONE,
    JOB,
    PID,
    follow_detached,
    job_of,
)
from istbench.launch.hosts.run import HostsRun, run_named_by
from istbench.launch.hosts.run_folder import FAILED as REPORT
from istbench.launch.hosts.run_folder import Failure, watch, write_cell, write_failure
from istbench.launch.processes.failures import StuckAtStep, WorkerLost

FAILED = {"message": "it diverged", "status": 1, "unfit": False, "lost": False}


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Makes jobs on this machine, each with an ssh key and cells that failed or train; its process may work."""
    monkeypatch.setenv("ISTBENCH_CACHE", str(tmp_path))
    with ExitStack() as stack:

        def made(name, *, failed=(), training=(), works=False, started=True):
            folder = tmp_path / "detached" / name
            for key in (*failed, *training):
                (folder / key).mkdir(parents=True)
                write_cell(folder / key, "cell")
            for key in failed:
                write_failure(folder / key, Failure("it diverged", 1))
                (folder / key / DONE).touch()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / JOB).write_text(json.dumps({key: {"out": "there"} for key in (*failed, *training)}))
            (folder / "key-1").touch()
            if started:
                (folder / PID).touch()
            if works:
                descriptor = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            return folder

        yield made


def messages(key="a"):
    """What a host says of a cell that has ended; None if no job has it."""
    said = queue.SimpleQueue()
    agent = Agent(io.StringIO(), {})
    agent.say = said.put
    if follow_detached(agent, {"key": key}) is None:
        return None
    found = []
    while not found or "ended" not in found[-1]:
        found.append(said.get(timeout=10))
    return found


def test_a_taken_cell_is_reported_as_long_as_its_job_works(job):
    for name in ("1", "2"):
        folder = job(name, failed="a", training="b", works=name == "2")
        (folder / "a" / "taken").touch()
        assert (job_of("a") is not None) == (name == "2")
    assert messages() == [{"cell": "cell"}, {"ended": 1, "failure": FAILED, "tail": []}]


def test_long_lines_fit_into_a_message(tmp_path):
    (tmp_path / "said").write_text("a" * 10**6 + "\n")
    write_cell(tmp_path, "cell")
    write_failure(tmp_path, Failure("b" * 10**6, 1))
    said = []
    failure = watch(tmp_path, said.append, lambda: False)
    for frame in (*said, {"ended": 1, "failure": failure, "tail": []}):
        msgspec.convert(frame, Frame)
    assert len(said[0]["said"]) == len(failure["message"]) == LONGEST_MESSAGE


def test_a_killed_job_leaves_no_ssh_key_and_one_that_works_or_starts_keeps_it(job):
    folders = job("1"), job("2", works=True), job("3", started=False)
    assert messages() is None
    assert [len(list(folder.glob("key-*"))) for folder in folders] == [0, 1, 1]


@pytest.mark.processes
def test_a_job_that_ends_at_once_is_reported_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(OSError, match="^the detached istbench does not start: it prints nothing$"):
        remote_detached.start_detached(None, {"files": {JOB: "{}"}, "within_s": float("inf")})
    assert list((tmp_path / "detached").iterdir()) == []


def test_a_cell_whose_job_was_killed_or_taken_by_another_command_has_failed(job):
    folder = job("1", training="a")
    *_, end = messages()
    assert end["failure"]["message"].startswith(
        "the detached istbench ended without a message, for example because"
    )
    said = queue.SimpleQueue()
    agent = Agent(io.StringIO(), {})
    agent.say = said.put
    remote_detached._watch(agent, folder.parent / "2", "a")
    assert said.get()["failure"]["message"].endswith("; run the same command again")


@pytest.mark.parametrize(("failure", "lost"), [(WorkerLost("gone"), True), (StuckAtStep("gone"), False)])
def test_a_detached_cell_that_is_stuck_at_a_step_is_not_reported_as_a_loss(tmp_path, monkeypatch, failure, lost):
    def fail(*_):
        raise failure

    monkeypatch.setattr(detached_job, "run_with_restarts", fail)
    (tmp_path / "a").mkdir()
    detached_job.train(tmp_path / "a", HostsRun(request=RunRequest(workload="toy", method="ist"), out=tmp_path))
    assert msgspec.json.decode((tmp_path / "a" / REPORT).read_bytes())["lost"] is lost


class First:
    """A first host that sends messages, and takes one request."""

    name = "host0"

    def __init__(self, *frames):
        self.events, self.taken = queue.SimpleQueue(), False
        for frame in frames:
            self.events.put(Event(self, frame if isinstance(frame, Lost) else msgspec.convert(frame, Frame)))

    def do(self, what, **_):
        assert what == "take_detached"
        self.taken = True


@pytest.fixture
def follow(tmp_path):
    """Follows the cell of a first host, which shares the results directory; returns the names of its cell."""

    def followed(first, match):
        run, names = HostsRun(request=RunRequest(workload="toy", method="ist"), out=tmp_path), []
        with pytest.raises(RunFailed, match=match):
            _Detached([first], first.events, run, "there", True, lambda _: None, names.append).follow(False)
        return names

    return followed


def test_a_followed_cell_is_named_before_its_failure_is_raised(follow):
    first = First({"cell": ""}, {"cell": "cell"}, {"ended": 1, "failure": FAILED, "tail": []})
    assert follow(first, "^it diverged$") == ["cell"]
    assert first.taken


def test_a_lost_first_host_keeps_the_results_of_a_followed_cell(follow):
    first = First({"cell": "cell"}, Lost("the connection to it is lost"))
    follow(first, "^host0: the connection to it is lost; a detached cell goes on; the same command follows it$")
    assert not first.taken


def test_a_first_host_that_names_another_directory_is_not_believed(follow, tmp_path):
    first = First({"cell": ".."})
    assert follow(first, "^host0: the name of a cell must match .*, not '..'; leave this host out$") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../b", "/b", "b/", "b\0"])
def test_a_name_of_a_cell_is_one_component_of_a_path(name, tmp_path):
    with pytest.raises(RunFailed, match="^host0: the name of a cell must .*; leave this host out$"):
        run_named_by("host0", name, tmp_path)


def test_a_right_name_of_a_cell_is_its_run_directory(tmp_path):
    name = "my.task-ist-n2-s1-0123abcd"
    assert run_named_by("host0", name, tmp_path).path == tmp_path / "runs" / name
