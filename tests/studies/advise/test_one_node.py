"""The target that one node reaches, and the sentence on minutes that are too few."""

import math

import pytest
from probes import curve

from istbench.results.metrics import Metric
from istbench.studies.advise.one_node import level_of, progress_by_half, too_short

LOSS = Metric("loss", lower_is_better=True)


@pytest.mark.parametrize(
    ("values", "level"),
    [
        ([0.1, 0.5, 0.6955189049243927], 0.69),
        ([0.1, 0.7246, 0.724], 0.72),
        ([0.1, 0.5, 0.7, 0.6, 0.71, 0.65], 0.65),  # an evaluation is 0.05 off
        ([0.001, 0.0042], 0.0042),
        ([0.0, 0.00426], 0.0042),
        ([0.704, 0.7061], 0.706),  # 0.70 is worse than before training
        ([0.5, 1.0], 1.0),
        ([20.0, 57.31], 57.3),
    ],
)
def test_a_rising_metric_is_rounded_down(values, level):
    found = level_of(curve(list(enumerate(values))))
    assert found[0] == pytest.approx(level, abs=1e-12)
    assert found[1] <= len(values) - 1


@pytest.mark.parametrize(
    ("values", "level"), [([4.2, 2.3101], 2.32), ([4.2, 0.00314], 0.0032), ([900.0, 123.4], 124.0)]
)
def test_a_falling_metric_is_rounded_up(values, level):
    assert level_of(curve(list(enumerate(values)), LOSS))[0] == pytest.approx(level)


def test_a_loss_that_falls_to_nearly_nothing_is_a_target_of_digits_that_mean_something():
    level, seconds = level_of(curve([(0, 14.1), (10, 0.1), (20, 1e-3), (30, 1.3e-6)], LOSS))
    assert (level, seconds < 20.0) == (pytest.approx(0.0015), True)
    assert level_of(curve([(0, 2e-3), (10, 3.1e-5)], LOSS))[0] == pytest.approx(3.1e-5)  # a small unit
    assert level_of(curve([(0, 50_000.0), (10, 20.0)], LOSS))[0] == pytest.approx(20.0)
    assert level_of(curve([(0, 0.9), (10, 0.0)], LOSS))[0] == 0.0  # no error is left


def test_a_node_that_gives_one_answer_to_everything_has_no_level():
    """A macro F1 of .1693 from the second of 30 evaluations on: all beats are of the largest class."""
    stuck = [0.0158, 0.0158, *[0.1693] * 28]
    assert level_of(curve(list(enumerate(stuck)))) is None
    assert level_of(curve(list(enumerate([*stuck, 0.21])))) is not None
    assert level_of(curve(list(enumerate([0.1, *[1.0] * 20])))) is not None  # all of them right


def test_a_node_that_learned_nothing_has_no_level():
    assert level_of(curve([(0, 0.3), (10, 0.2)])) is None
    assert level_of(curve([(0, 0.3)])) is None
    assert level_of(curve([(0, 2.0), (10, math.inf)], LOSS)) is None


def test_the_seconds_are_those_in_which_the_level_was_reached():
    level, seconds = level_of(curve([(0, 0.0), (10, 0.5), (20, 0.75)]))
    assert (level, seconds) == (0.75, 20.0)
    assert level_of(curve([(0, 0.0), (10, 0.5), (20, 0.745)]))[1] == pytest.approx(10 + 10 * 0.24 / 0.245)


def test_progress_is_shared_by_the_halves_of_the_time():
    assert progress_by_half(curve([(0, 0.0), (50, 0.5), (100, 1.0)])) == (0.5, 0.5)
    assert progress_by_half(curve([(0, 0.0), (40, 0.8), (60, 0.8), (100, 0.8)])) == (1.0, 0.0)
    assert progress_by_half(curve([(0, 4.0), (100, 2.0)], LOSS)) == (0.5, 0.5)
    assert progress_by_half(curve([(0, 0.4), (100, 0.4)])) == (0.0, 0.0)


def test_a_steep_end_is_said_with_the_minutes_that_would_do():
    assert too_short(curve([(0, 0.0), (40, 0.8), (50, 0.9), (100, 0.95)]), 10) == ""
    steep = too_short(curve([(0, 0.0), (50, 0.6), (100, 0.9)]), 10)
    assert "33% of its progress" in steep
    assert "--minutes 20 would do" in steep
    straight = too_short(curve([(0, 0.0), (50, 0.4), (100, 0.8)]), 5)
    assert "50% of its progress" in straight
    assert "--minutes" in straight
    assert "learned nothing" in too_short(curve([(0, 0.1), (10, 0.1)]), 5)
