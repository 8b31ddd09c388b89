"""Workers that do not go on: found by what they say that they do, and by their state."""

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

from istbench.base.activity import Activity
from istbench.launch.processes import stuck
from istbench.launch.processes.failures import WorkerLost, activity_path
from istbench.launch.processes.stuck import Watch

PROCESSES = {rank: os.getpid() for rank in range(3)}


@pytest.fixture
def activities(tmp_path):
    found = []
    for rank in PROCESSES:
        activity_path(tmp_path, rank).parent.mkdir()
        activity = Activity()
        activity.share(activity_path(tmp_path, rank))
        found.append(activity)
    return found


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by a second whenever it is asked."""
    now = [0.0]

    def tick():
        now[0] += 1
        return now[0]

    # Threads of other tests may ask the time module itself.
    monkeypatch.setattr(stuck, "time", SimpleNamespace(monotonic=tick))
    return now


def looks(watch, processes, seconds):
    for _ in range(seconds):
        watch.look(processes)


def test_a_step_that_does_not_end_names_its_worker(tmp_path, activities, clock):
    watch = Watch(tmp_path, 20.0)
    for rank, activity in enumerate(activities):
        activity.begin("computing training step", 7, timed=rank == 1)
    with activities[2].waiting("averaging"):
        activities[2].begin("computing training step", 8, timed=True)
        looks(watch, PROCESSES, 26)
        with pytest.raises(WorkerLost) as failure:
            watch.look(PROCESSES)
    assert str(failure.value) == (
        "worker 1 was computing training step 7 for more than --timeout 20 s without finishing; if this work "
        "only takes long, give a longer --timeout"
    )


def test_who_begins_one_step_after_another_or_evaluates_without_batches_goes_on(tmp_path, activities, clock):
    watch = Watch(tmp_path, 5.0)
    activities[1].begin("evaluating after step", 4)
    for step in range(40):
        activities[0].begin("computing training step", step // 10, timed=True)
        watch.look(PROCESSES)
    looks(Watch(tmp_path, None), PROCESSES, 40)


def test_a_launcher_that_was_stopped_itself_counts_no_seconds(tmp_path, activities, clock):
    watch = Watch(tmp_path, 20.0)
    activities[0].begin("computing training step", 7, timed=True)
    watch.look(PROCESSES)
    clock[0] += 1000
    looks(watch, PROCESSES, 5)


@pytest.mark.processes
def test_a_stopped_worker_is_named_whatever_it_did(tmp_path, activities, clock):
    process = subprocess.Popen(["sleep", "600"])
    try:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        watch = Watch(tmp_path, 20.0)
        with pytest.raises(WorkerLost) as failure:
            looks(watch, {0: os.getpid(), 1: process.pid}, 28)
    finally:
        process.kill()
        process.wait()
    assert str(failure.value) == (
        "worker 1 was starting when a signal (SIGSTOP) stopped it, and did not continue within --timeout 20 s"
    )
