"""Jobs that Slurm no longer has, where nothing but its queue tells."""

from types import SimpleNamespace

import pytest
import submitit
from fake_clock import FakeClock

from istbench.launch.backends import slurm
from istbench.launch.backends.slurm import Queue, queued_jobs


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Has `squeue` print what it is given, and end with a status."""

    def says(text, status=0):
        program = tmp_path / "squeue"
        program.write_text(f"#!/bin/sh\nprintf '{text}'\nexit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return says


@pytest.fixture
def clock(monkeypatch):
    made = FakeClock()
    monkeypatch.setattr(slurm, "time", made)
    return made


@pytest.mark.processes
def test_the_queue_is_what_squeue_lists(squeue):
    squeue("7\\n12\\n")
    assert queued_jobs() == {"7", "12"}


@pytest.mark.processes
def test_a_queue_that_says_nothing_is_not_an_empty_one(squeue, clock, tmp_path, monkeypatch):
    squeue("slurm_load_jobs error: Unable to contact slurm controller", 1)
    assert queued_jobs() is None
    queue = Queue()
    assert not queue.lacks("7")
    clock.seconds += 1000
    assert not queue.lacks("7")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert queued_jobs() is None


def test_a_job_is_gone_when_the_queue_was_without_it_for_half_a_minute(monkeypatch, clock):
    there = {"7"}
    monkeypatch.setattr(slurm, "queued_jobs", lambda: set(there))
    queue = Queue()
    assert not queue.lacks("7")
    there.clear()
    for _ in range(3):  # looked at every ten seconds
        clock.seconds += 10
        assert not queue.lacks("7")
    there.add("7")  # queued again
    clock.seconds += 10
    assert not queue.lacks("7")
    there.clear()
    clock.seconds += 10
    assert not queue.lacks("7")
    clock.seconds += 30
    assert queue.lacks("7")


def test_a_job_that_is_gone_without_a_result_is_a_failure_of_its_cell(tmp_path, monkeypatch):
    class Lost:
        job_id, paths = "7", SimpleNamespace(folder="there")

        def done(self):
            return False

    monkeypatch.setattr(submitit, "SlurmJob", Lost)
    monkeypatch.setattr(Queue, "lacks", lambda self, identity: identity == "7")
    submission = slurm.Submission(tmp_path, slurm.SlurmOptions(), lambda _: None)
    submission.jobs["a"] = Lost()
    ((name, failure),) = submission.endings()
    assert (name, failure.partition(":")[0]) == ("a", "job 7 left the queue without a result")
