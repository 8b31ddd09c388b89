"""What of a run's events counts, and when a curve reaches a level."""

import pytest
from fake_runs import resume, start

from istbench.results.curves import Curve, time_to_target
from istbench.results.events import Evaluation
from istbench.results.metrics import Metric

ACCURACY = Metric("accuracy")


def evaluation(step, value, train_s=None, **metrics):
    return Evaluation(
        step=step, samples=step * 8, train_s=step / 10 if train_s is None else train_s, wall_s=float(step),
        evaluate_s=0.1, assemble_s=0.1, bytes_sent_per_node=0, bytes_received_per_node=0, train_loss=None,
        metrics={"accuracy": value, **metrics},
    )  # fmt: skip


def curve_of(*values):
    return Curve.from_events([evaluation(10 * n, value) for n, value in enumerate(values)], ACCURACY)


def test_a_target_is_interpolated_from_the_evaluation_before():
    there = time_to_target(curve_of(0.1, 0.3, 0.7, 0.9), 0.6)
    assert there.step == pytest.approx(17.5)
    assert there.seconds == pytest.approx(1.75)


def test_each_clock_and_metric_has_points_of_its_own():
    curve = curve_of(0.1, 0.3, 0.7)
    assert curve.reached(0.6) == curve.reached(0.6) == time_to_target(curve, 0.6)
    assert curve.on_clock("wall_s", [0.0, 10.0, 20.0]).reached(0.6).seconds == pytest.approx(17.5)
    assert curve.on_metric(Metric("accuracy", lower_is_better=True)).reached(0.6).step == 0
    assert curve.reached(0.9) is None


def test_the_first_crossing_counts_even_if_the_curve_falls_again():
    assert time_to_target(curve_of(0.0, 0.6, 0.2, 0.9), 0.6).step == 10


def test_the_other_clock_can_be_asked_for():
    curve = curve_of(0.0, 1.0)
    assert curve.clock == "train_s"
    elsewhere = curve.on_clock("wall_s", [evaluation.wall_s for evaluation in curve.evaluations])
    assert elsewhere.clock == "wall_s"
    assert time_to_target(elsewhere, 0.5).seconds == pytest.approx(5.0)


def test_a_level_that_was_there_before_training_takes_no_time():
    there = time_to_target(curve_of(0.6, 0.7), 0.5)
    assert (there.step, there.seconds) == (0.0, 0.0)


def test_a_time_that_is_interpolated_from_the_start_is_told_apart():
    assert time_to_target(curve_of(0.1, 0.7, 0.9), 0.6).from_start
    assert not time_to_target(curve_of(0.1, 0.7, 0.9), 0.8).from_start
    assert not time_to_target(curve_of(0.7, 0.8), 0.6).from_start  # there before training
    assert not time_to_target(curve_of(None, 0.8), 0.6).from_start  # taken as evaluated


@pytest.mark.parametrize("values", [(), (0.1,), (0.1, 0.49), (None, None), (0.1, None)])
def test_a_miss_is_none(values):
    assert time_to_target(curve_of(*values), 0.5) is None


def test_nothing_is_interpolated_from_an_evaluation_that_gave_no_number():
    assert time_to_target(curve_of(0.1, None, 0.6), 0.5).step == 20


def test_equal_values_at_the_level_need_no_slope():
    assert time_to_target(curve_of(0.5, 0.5), 0.5).step == 0


def test_a_falling_metric_is_reached_from_above():
    loss = Curve.from_events(
        [evaluation(10 * n, value) for n, value in enumerate((4.0, 2.0, 3.0, None, 1.0))],
        Metric("accuracy", lower_is_better=True),
    )
    assert (loss.best(), loss.final()) == (1.0, 1.0)
    assert time_to_target(loss, 3.0).step == pytest.approx(5)
    assert time_to_target(loss, 1.5).step == 40  # nothing to interpolate from
    assert time_to_target(loss, 4.0).step == 0
    assert time_to_target(loss, 0.5) is None


def test_numbers_too_far_apart_to_subtract_have_a_share_of_their_way():
    assert time_to_target(curve_of(-1.7e308, 1.7e308), 0.0).step == pytest.approx(5)
    assert time_to_target(curve_of(0.0, 5e-324), 5e-324).step == 10


def test_best_and_final_value():
    curve = curve_of(0.1, 0.8, None, 0.7)
    assert (curve.best(), curve.final()) == (0.8, 0.7)
    assert curve_of().best() is None
    assert curve_of().final() is None
    assert curve_of(None).best() is None


def test_a_metric_that_was_not_evaluated_is_no_number():
    curve = Curve.from_events([evaluation(0, 0.5)], Metric("precision@1"))
    assert curve.final() is None


def steps_of(*events):
    return [kept.step for kept in Curve.from_events(events, ACCURACY).evaluations]


def test_a_resumed_run_has_lost_what_it_evaluated_after_its_checkpoint():
    events = [start(), *(evaluation(step, 0.1) for step in (0, 10, 20, 30))]
    resumed = [*events, resume(15)]
    assert steps_of(*resumed) == [0, 10]
    assert steps_of(*resumed, evaluation(20, 0.2), evaluation(30, 0.3)) == [0, 10, 20, 30]
    assert Curve.from_events([*resumed, evaluation(20, 0.2)], ACCURACY).final() == 0.2


def test_resuming_at_an_evaluation_keeps_it_and_from_nothing_drops_all():
    events = [evaluation(0, 0.1), evaluation(10, 0.1)]
    assert steps_of(*events, resume(10)) == [0, 10]
    assert steps_of(*events, resume(-1)) == []


def test_a_second_resume_supersedes_the_first():
    assert steps_of(
        evaluation(0, 0.1), evaluation(10, 0.1), resume(0), evaluation(10, 0.2),
        evaluation(20, 0.2), resume(12), evaluation(30, 0.3),
    ) == [0, 10, 30]  # fmt: skip


def test_a_repeated_step_and_a_new_start_supersede():
    assert steps_of(evaluation(0, 0.1), evaluation(10, 0.1), evaluation(10, 0.2)) == [0, 10]
    assert steps_of(evaluation(0, 0.1), evaluation(10, 0.1), start()) == []
