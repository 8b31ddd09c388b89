"""A signed curve: where it had learned as much."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import curve

from istbench.results.metrics import Metric
from istbench.studies.advise.signed_curve import SignedCurve, continued, ends_of

LOSS = Metric("loss", lower_is_better=True)


def test_between_two_points_the_value_is_linear_in_the_log_of_the_step():
    own = SignedCurve.of(curve([(0, 0.0), (10, 0.2), (1000, 0.6)]))
    assert own.steps_at(0.4) == pytest.approx(100)
    assert own.steps_at(0.1) == pytest.approx(2.5), "in its root up to the first point"
    assert (own.steps_at(0.2), own.steps_at(0.6)) == (10, 1000)
    assert (own.steps_at(0.0), own.steps_at(-1.0), own.steps_at(0.61)) == (0, 0, math.inf)


def test_a_lower_loss_is_more_progress():
    own = SignedCurve.of(curve([(0, 4.0), (10, 3.0), (20, 2.5)], LOSS))
    assert own.steps_at(LOSS.signed(2.5)) == 20
    assert own.steps_at(LOSS.signed(3.5)) == pytest.approx(2.5)


def test_a_worse_value_later_changes_nothing():
    own = SignedCurve.of(curve([(0, 0.0), (10, 0.5), (20, 0.3), (40, 0.6)]))
    assert own.steps_at(0.3) == pytest.approx(3.6)
    assert own.steps_at(0.5) == 10
    assert 20 < own.steps_at(0.55) < 40
    assert own.last == 40


def test_a_curve_that_stays_at_a_value_has_a_first_and_a_last_step_of_it():
    own = SignedCurve.of(curve([(0, 0.0), (10, 0.5), (20, 0.3), (40, 0.5), (80, 0.6)]))
    assert (own.steps_at(0.5), own.steps_at(0.5, "right"), own.steps_at(0.6, "right")) == (10, 40, 80)


def test_noise_is_what_evaluations_lose():
    random = np.random.default_rng(0)
    flat = SignedCurve.of(curve([(step, 0.5 + 0.01 * random.standard_normal()) for step in range(1, 400)]))
    assert flat.noise == pytest.approx(0.01, rel=0.1)
    assert SignedCurve.of(curve([(0, 0.0), (10, 0.5), (20, 0.7)])).noise == 0


def test_without_a_value_at_step_0_a_curve_starts_with_its_first_point():
    assert SignedCurve.of(curve([(10, 0.5), (20, 0.6)])).steps_at(0.4) == 0


def test_evaluations_without_a_number_do_not_count():
    own = SignedCurve.of(curve([(0, 0.1), (10, None), (20, None)]))
    assert (own.last, own.steps_at(0.1)) == (0.0, math.inf)


def test_a_run_with_a_schedule_tells_its_end():
    whole = curve([(0, 0.0), (5, 0.2), (10, 0.4)])
    assert [one.step for one in ends_of(whole).evaluations] == [0, 10]
    assert ends_of(whole).seconds == (0.0, 10.0)
    assert [one.step for one in ends_of(curve([(0, 0.0)])).evaluations] == [0]


@pytest.mark.parametrize("target", [None, 0.6, 0.5])
def test_a_longer_run_has_the_evaluations_of_a_shorter_one_of_the_same_training(target):
    shorter, longer = curve([(0, 0.0), (5, 0.2), (10, 0.4)]), curve([(0, 0.0), (10, 0.4), (20, 0.5)])
    both = continued(shorter, longer, target)
    assert [one.step for one in both.evaluations] == [0, 5, 10, 20]
    assert both.values == (0.0, 0.2, 0.4, 0.5)
    assert len(both.seconds) == 4


def test_a_chance_evaluation_of_a_shorter_run_does_not_reach_the_target():
    longer = curve([(0, 0.0), (10, 0.4), (20, 0.5)])
    assert continued(curve([(0, 0.0), (5, 0.7)]), longer, 0.6) == longer


def test_a_finer_run_to_the_target_tells_its_step_and_not_a_coarser_one_before_it():
    coarse, fine = curve([(0, 0.0), (50, 0.4), (100, 0.9)]), curve([(0, 0.0), (40, 0.3), (60, 0.5), (80, 0.6)])
    assert [one.step for one in continued(coarse, fine, 0.6).evaluations] == [0, 40, 50, 60, 80]


@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=12), value=st.floats(0, 1), more=st.floats(0, 0.5))
def test_more_progress_takes_no_fewer_steps(values, value, more):
    own = SignedCurve.of(curve([(step, own) for step, own in enumerate(values)]))
    here, there = own.steps_at(value), own.steps_at(value + more)
    assert here <= there
    assert np.isinf(there) or there <= own.last
