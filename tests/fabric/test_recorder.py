"""What a node's record holds: whole rounds after the first, compute without waiting."""

import time

import numpy as np
import pytest
import torch

from istbench.cluster.trace import COMPUTE, MARK, POST, ROUND, STEP, WAIT, WAIT_BEFORE
from istbench.fabric import recorder as recorder_file
from istbench.fabric.recorder import Recorder
from istbench.fabric.timestamps import Timestamps


class Clock:
    """The seconds that a test says: of the processor, and of the wall."""

    def __init__(self):
        self.cpu = self.wall = 0.0

    def compute(self, seconds):
        self.cpu += seconds
        self.wall += seconds

    def wait(self, seconds):
        self.wall += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The clock of the recorders of a test."""
    own = Clock()

    def timestamps(device, of=time.perf_counter):
        return Timestamps(device, lambda: own.cpu if of is time.thread_time else own.wall)

    monkeypatch.setattr(recorder_file, "Timestamps", timestamps)
    return own


def train(recorder, steps, local_steps, clock=None, work=0.0, wait=0.0):
    clock = clock or Clock()
    recorder.resume()
    for step in range(1, steps + 1):
        clock.compute(work)
        if step % local_steps == 0:
            op = recorder.post("all_reduce", 100)
            with recorder.waiting(op):
                clock.wait(wait)
            recorder.mark("round")
        recorder.mark("step")


@pytest.mark.parametrize(
    ("local_steps", "steps", "rounds"),
    [(1, 100, 20), (10, 100, 3), (30, 300, 3), (10, 29, 1), (10, 19, 0), (10, 10, 0)],
)
def test_it_records_whole_rounds_after_the_first(local_steps, steps, rounds):
    recorder = Recorder(torch.device("cpu"))
    train(recorder, steps, local_steps)
    events = recorder.events()
    marks = events[events["code"] == MARK]["kind"].tolist()
    assert marks.count(ROUND) == rounds
    assert marks.count(STEP) == rounds * local_steps
    assert recorder.finished == (rounds >= 3 and rounds * local_steps >= 20)
    posts = events[events["code"] == POST]
    assert posts["op"].tolist() == posts["match"].tolist() == list(range(rounds))
    assert events[events["code"] == WAIT]["op"].tolist() == list(range(rounds))


def test_waiting_and_what_happens_off_the_clock_is_not_compute(clock):
    recorder = Recorder(torch.device("cpu"))
    train(recorder, 60, 30, clock, work=0.001, wait=0.4)
    clock.compute(0.5)
    with recorder.waiting(-1):  # as for what evaluating sends
        pass
    train(recorder, 60, 30, clock, work=0.001, wait=0.4)
    events = recorder.events()
    seconds = events[events["code"] == COMPUTE]["seconds"].sum()
    assert recorder.finished
    assert seconds == pytest.approx(0.09)


def test_the_first_wait_of_a_sample_is_for_operations_from_before_it():
    """Messages leave after a step and are awaited after the next one, also after a drain between the two."""
    recorder, flying = Recorder(torch.device("cpu")), ()
    for step in range(40):
        with recorder.waiting(*flying, for_nodes=False):
            pass
        flying = tuple(recorder.post(kind, 10 + step % 2, (1,)) for kind in ("receive", "send"))
        recorder.mark("round")
        recorder.mark("step")
        with recorder.waiting():
            pass
    events = recorder.events()
    assert recorder.finished
    before = events[events["code"] == WAIT_BEFORE]
    assert before["op"].tolist() == [38, 39]
    assert events[events["code"] == WAIT]["op"].tolist() == list(range(38))
    assert flying == (-1, -1)


def test_what_is_awaited_without_names_is_awaited_once():
    recorder = Recorder(torch.device("cpu"))
    train(recorder, 1, 1)
    first, second = (recorder.post("all_reduce", size) for size in (1, 2))
    with recorder.waiting(second):
        pass
    recorder.wait_all()
    recorder.wait_all()
    recorder.mark("round")
    recorder.mark("step")
    events = recorder.events()
    assert events[events["code"] == WAIT]["op"].tolist() == [second, first]


def test_the_seconds_of_a_pool_count_as_computing_of_their_lap_alone():
    recorder = Recorder(torch.device("cpu"))
    train(recorder, 1, 1)
    recorder.computed_beside(5.0)
    recorder.resume()  # an evaluation used the pool
    recorder.computed_beside(2.0)
    recorder.mark("round")
    recorder.computed_beside(1.0)
    recorder.mark("step")
    events = recorder.events()
    assert events["seconds"][events["code"] == COMPUTE].tolist() == [2.0, 1.0]


def test_waits_for_other_nodes_add_up_over_all_rounds_and_no_others(clock):
    recorder = Recorder(torch.device("cpu"))
    train(recorder, 60, 30, clock, wait=0.05)
    assert recorder.waits.seconds() == pytest.approx(0.1)
    with recorder.waiting(for_nodes=False):  # for a batch of this node's own
        clock.wait(0.05)
    assert recorder.waits.seconds() == pytest.approx(0.1)
    recorder.post("all_reduce", 100)
    clock.wait(0.05)  # in the backward pass, which waits by itself
    recorder.wait_all()
    assert recorder.waits.seconds() == pytest.approx(0.15)
    recorder.wait_all()
    assert recorder.waits.seconds() == pytest.approx(0.15)


def test_a_sample_begins_after_a_round_that_ends_steady():
    recorder = Recorder(torch.device("cpu"))
    recorder.steady = False
    train(recorder, 40, 10)
    assert len(recorder.events()) == 0
    recorder.steady = True
    train(recorder, 10, 10)
    recorder.steady = False  # no end of a sample
    train(recorder, 40, 10)
    marks = recorder.events()
    assert recorder.finished
    assert np.count_nonzero((marks["code"] == MARK) & (marks["kind"] == ROUND)) == 3
