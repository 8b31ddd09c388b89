"""Batches made ahead: the same ones, in order, and never more than asked for."""

import threading

import pytest
import torch

from istbench.cluster.trace import POST, WAIT, WORK
from istbench.fabric.recorder import Recorder
from istbench.node.trainer import PrefetchedBatches
from istbench.workloads.base import Batch


def ahead_of(make, first: int, last: int, ahead: int, recorder: Recorder | None = None) -> PrefetchedBatches:
    return PrefetchedBatches(make, first, last, ahead, recorder or Recorder(torch.device("cpu")))


def batch(step: int) -> Batch:
    return torch.tensor([step]), torch.tensor([step])


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_every_step_gets_its_batch(ahead: int) -> None:
    batches = ahead_of(batch, 4, 9, ahead)
    assert [int(batches.take(step)[0]) for step in range(4, 9)] == [4, 5, 6, 7, 8]
    batches.close()


def test_they_are_made_by_another_thread_up_to_so_many_ahead_and_none_beyond_the_last() -> None:
    made: list[tuple[int, int]] = []
    there = {step: threading.Event() for step in range(5)}

    def make(step: int) -> Batch:
        made.append((step, threading.get_ident()))
        there[step].set()
        return batch(step)

    batches = ahead_of(make, 0, 5, 2)
    batches.take(0)
    assert there[2].wait(30)
    assert [step for step, _ in made] == [0, 1, 2]
    for step in range(1, 5):
        batches.take(step)
    batches.close()
    assert [step for step, _ in made] == [0, 1, 2, 3, 4]
    assert {thread for _, thread in made} != {threading.get_ident()}
    assert len({thread for _, thread in made}) == 1


def test_once_settled_nothing_more_is_made_before_the_next_is_taken() -> None:
    made: list[int] = []
    free = threading.Event()

    def make(step: int) -> Batch:
        if step:
            free.wait(30)
        made.append(step)
        return batch(step)

    batches = ahead_of(make, 0, 9, 2)
    batches.take(0)
    threading.Timer(0.05, free.set).start()
    batches.settle()
    assert made == [0, 1, 2]
    batches.close()


def test_what_goes_wrong_comes_out_where_the_batch_is_taken() -> None:
    def make(step: int) -> Batch:
        if step == 1:
            raise ValueError("broken")
        return batch(step)

    batches = ahead_of(make, 0, 3, 2)
    batches.take(0)
    batches.settle()
    with pytest.raises(ValueError, match="broken"):
        batches.take(1)
    batches.close()


def test_closing_does_not_make_what_is_left() -> None:
    made: list[int] = []
    free = threading.Event()

    def make(step: int) -> Batch:
        made.append(step)
        free.wait(30)
        return batch(step)

    batches = ahead_of(make, 0, 10, 5)
    taker = threading.Thread(target=batches.take, args=(0,))
    taker.start()
    while not made:
        taker.join(0.01)
    free.set()
    taker.join()
    batches.close()
    assert len(made) <= 6


def test_the_seconds_of_their_thread_are_work_that_a_step_waits_for() -> None:
    recorder = Recorder(torch.device("cpu"))

    def make(step: int) -> Batch:
        torch.randn(200_000)
        return batch(step)

    batches = ahead_of(make, 0, 41, 2, recorder)
    for step in range(40):
        batches.take(step)
        recorder.wait_all()  # for transfers: the batches of later steps are none
        recorder.mark("round")
        recorder.mark("step")
    batches.close()
    events = recorder.events()
    work = events[(events["code"] == POST) & (events["kind"] == WORK)]
    assert len(work) == 20
    assert (work["seconds"] > 0).all()
    # What is waited for first was posted before the record began.
    waited = events["op"][events["code"] == WAIT]
    assert list(waited) == sorted(waited)
    assert len(waited) == 18
