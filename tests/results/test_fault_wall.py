"""The wall seconds of runs with faults, from recorded events."""

import pytest
from fake_runs import resume, start
from fault_events import BEGAN, FAULT_FREE, evaluation, loss, ready

from istbench.results.events import Resize, Resume
from istbench.results.fault_record import wall_of
from istbench.results.metrics import Metric

ACCURACY = Metric("accuracy", lower_is_better=False, unit="")


def test_the_parts_of_a_run_without_faults_add_up_to_its_wall():
    wall = wall_of(FAULT_FREE, ACCURACY, BEGAN, 8.0, 1.0)
    assert wall.seconds == pytest.approx(9.7)
    assert (wall.computing_s, wall.waiting_s, wall.lost_s, wall.noticing_s, wall.restarting_s) == (8.0, 0, 0, 0, 0)
    assert wall.evaluating_s == pytest.approx(1.0)
    assert wall.checkpointing_s == pytest.approx(0.7)
    assert wall.to_target_s == pytest.approx(8.7)


def test_a_loss_adds_lost_steps_noticing_and_restarting():
    # Alive until 7 s, noticed at 8 s, ready at 11.5 s. The checkpoint of step 10 is from 4.8 s of the clock.
    events = [*FAULT_FREE[:3], loss(10, 8.0, 1.0), ready(10, 3.0), evaluation(20, 9.0, 10.8)]
    wall = wall_of(events, ACCURACY, BEGAN, 8.0, 1.0)
    # The nodes train .4 s after they have read the checkpoint: of 5.9 s, 5 train and .5 evaluate.
    assert (wall.noticing_s, wall.restarting_s) == pytest.approx((1.0, 3.5 + 0.4))
    assert wall.checkpointing_s == pytest.approx(0.3)
    assert wall.lost_s == pytest.approx(7.0 - 4.8)
    assert wall.waiting_s == pytest.approx(1.0), "the train seconds beyond those without faults"
    assert wall.seconds == pytest.approx(11.5 + (10.8 - 4.9)), "the time from the first evaluation to the last"


def test_a_damaged_checkpoint_loses_steps_that_had_counted():
    again = resume(10, damage="checkpoint broken")
    events = [
        *FAULT_FREE, loss(20, 11.0, 1.0), ready(10, 2.0), again,
        evaluation(20, 8.0, 9.8), evaluation(30, 12.0, 14.0),
    ]  # fmt: skip
    wall = wall_of(events, ACCURACY, BEGAN, 12.0, 1.0)
    assert wall.lost_s == pytest.approx(10.0 - 4.8)
    assert wall.seconds == pytest.approx(13.5 + (14.0 - 4.9))


def test_a_loss_before_the_nodes_are_ready_counts_as_restarting():
    events = [
        *FAULT_FREE[:3], loss(10, 8.0, 1.0), loss(10, 12.0, 0.5), ready(10, 3.0), evaluation(20, 8.0, 9.8),
    ]  # fmt: skip
    wall = wall_of(events, ACCURACY, BEGAN, 8.0, 1.0)
    assert wall.restarting_s == pytest.approx(3.5 + 3.5 + 0.4)
    assert wall.noticing_s == pytest.approx(1.5)
    assert wall.lost_s == pytest.approx(2.2)
    assert wall.seconds == pytest.approx(15.5 + (9.8 - 4.9))


def test_a_loss_without_a_checkpoint_loses_all_steps():
    events = [*FAULT_FREE[:3], loss(-1, 8.0, 1.0), ready(0, 3.0), *FAULT_FREE[1:]]
    wall = wall_of(events, ACCURACY, BEGAN, 8.0, 1.0)
    assert wall.lost_s == pytest.approx(7.0)


def test_all_seconds_are_those_of_the_machines_for_which_a_lab_stands():
    # A lab that is two times slower: train seconds are divided by that already.
    slow = [start(), evaluation(0, 0, 0.1), evaluation(10, 2.0, 4.9), evaluation(20, 4.0, 9.8)]
    whole, halved = wall_of(FAULT_FREE, ACCURACY, BEGAN, 8.0, 1.0), wall_of(slow, ACCURACY, BEGAN, 4.0, 2.0)
    assert halved.seconds == pytest.approx(whole.seconds / 2)
    assert halved.computing_s == pytest.approx(4.0)
    assert halved.checkpointing_s == pytest.approx(whole.checkpointing_s / 2)


def resized(step, noticed, before, after, noticing_s=None):
    change = Resize(before=before, after=after, cause="a change", noticed=BEGAN + noticed)
    return resume(
        step=step, loss=None if noticing_s is None else loss(step, noticed, noticing_s).loss, resize=change
    )


def test_an_elastic_run_trains_on_fewer_nodes_and_its_parts_add_up():
    # Three nodes to step 10, two to step 20, and three again from there.
    events = [
        *FAULT_FREE[:3], resized(10, 8.0, 3, 2, noticing_s=1.0), ready(10, 1.0), evaluation(20, 9.0, 9.9),
        resized(20, 14.2, 2, 3), ready(20, 2.0), evaluation(30, 12.0, 13.5),
    ]  # fmt: skip
    wall = wall_of(events, ACCURACY, BEGAN, 12.0, 1.0)
    assert wall.fewer_s == pytest.approx(9.0 - 4.0)
    assert (wall.computing_s, wall.waiting_s) == pytest.approx((4.0 + 3.0, 0.0))
    assert wall.lost_s == pytest.approx(7.0 - 4.8)
    # To stop at step 20 takes the time from 9.5 s, when the clock has 9.9 s, to 14.2 s.
    assert wall.seconds == pytest.approx(16.7 + (13.5 - 9.9))
    same = [event for event in events if not (isinstance(event, Resume) and event.loss is None)]
    again = wall_of([*same[:5], resized(10, 13.0, 2, 1, noticing_s=0.5), *same[4:]], ACCURACY, BEGAN, 12.0, 1.0)
    assert again.fewer_s == pytest.approx(9.0 - 4.0 + 3.0), "one node to the end"
