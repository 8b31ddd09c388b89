"""A metric's direction: what it decides, and how it is known."""

import math

import pytest
from garbage import quick
from hypothesis import given
from hypothesis import strategies as st

from istbench.results.metrics import Metric, agreement, falls_by_name, level_text, metric_named, value_text

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    "name",
    [
        "loss", "val_loss", "perplexity", "test perplexity", "top5_error", "WER", "test-cer", "valLoss", "RMSE",
        "cross_entropy", "negative_log_likelihood", "bits_per_byte", "bpc",
    ],
)  # fmt: skip
def test_losses_and_errors_fall_by_their_names(name):
    assert falls_by_name(name) is True
    assert metric_named(name) == Metric(name, lower_is_better=True)


@pytest.mark.parametrize(
    "name", ["accuracy", "valAccuracy", "top5", "top10", "precision@3", "recall@10", "f1", "bleu"]
)
def test_shares_and_scores_rise_by_their_names(name):
    assert falls_by_name(name) is False
    assert metric_named(name).source == "name"


@pytest.mark.parametrize("name", ["lossless_share", "errorless", "mean_rank", "reward", "stop5", "", "?"])
def test_other_names_do_not_tell(name):
    assert falls_by_name(name) is None
    assert (metric_named(name), metric_named(name).source) == (Metric(name), "assumed")


@quick(400)
@given(NUMBERS, NUMBERS, st.lists(st.none() | NUMBERS))
def test_a_falling_metric_is_a_rising_one_upside_down(one, other, values):
    up, down = Metric("m"), Metric("m", lower_is_better=True)
    assert down.better(one, other) == up.better(-one, -other) == (one < other)
    assert down.reached(one, other) == up.reached(-one, -other) == (not down.better(other, one))
    turned = [None if value is None else -value for value in values]
    best = up.best(values)
    assert down.best(turned) == (None if best is None else -best)
    assert best is None or all(not up.better(value, best) for value in values if value is not None)
    levels = [value for value in values if value is not None]
    assert down.easiest_first(levels) == tuple(sorted(set(levels), reverse=True))
    assert all(up.better(value, up.worst) and down.better(value, down.worst) for value in levels)


def test_a_missing_value_reaches_nothing():
    for metric in (Metric("m"), Metric("m", lower_is_better=True)):
        assert not metric.reached(None, 0.0)
        assert not metric.reached(math.nan, 0.0)
        assert metric.reached(0.0, 0.0)
        assert metric.best([None]) is None


def test_a_title_has_the_unit_and_an_axis_the_split():
    loss = Metric("val_loss", lower_is_better=True, unit="nats a token")
    assert (loss.title, loss.axis_on("test")) == ("val_loss (nats a token)", "val_loss (nats a token)")
    assert Metric("accuracy").axis_on("test") == "test accuracy"
    assert loss != Metric("val_loss", lower_is_better=True)
    assert loss == Metric("val_loss", lower_is_better=True, unit="nats a token", source="name")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.9124, "0.912"), (0.0, "0.000"), (-0.0, "0.000"), (1.88, "1.880"), (27.351, "27.35"), (123.44, "123.4"),
        (1234.4, "1234"), (-0.5, "-0.500"), (0.00042, "0.00042"), (0.0123, "0.012"), (2.1e8, "2.1e+08"),
        (1e300, "1e+300"), (5e-324, "4.94e-324"),
    ],
)  # fmt: skip
def test_a_value_has_the_digits_that_its_size_needs(value, text):
    assert value_text(value) == text


@given(NUMBERS)
@quick(200)
def test_a_level_is_told_from_every_other(level):
    assert float(level_text(level)) == level
    assert level_text(0.77) == "0.77"
    assert level_text(1234567.5) == "1234567.5"


UP = Metric("accuracy")


def test_metrics_agree_where_they_get_better_together():
    assert agreement([0.1, 0.2, 0.4], [0.2, 0.5, 0.6], UP) == 1.0
    assert agreement([90.0, 30.0, 12.0], [0.2, 0.5, 0.6], UP) == -1.0
    assert agreement([90.0, 30.0, 12.0], [3.0, 2.5, 2.4], Metric("loss", lower_is_better=True)) == -1.0
    assert agreement([0.1, 0.2, 0.4, 0.3], [0.2, 0.5, 0.6, 0.7], UP) == pytest.approx(4 / 6)
    assert agreement([0.1, None, 0.4, 0.4], [0.2, 0.5, 0.6, 0.6], UP) == 1.0


def test_where_nothing_changes_nothing_is_known():
    assert agreement([], [], UP) is None
    assert agreement([1.0, 1.0], [0.2, 0.5], UP) is None
    assert agreement([float("nan"), 1.0], [0.2, 0.5], UP) is None


def test_a_long_run_is_compared_in_little_time():
    rising = [float(step) for step in range(100_000)]
    assert agreement(rising, rising, UP) == 1.0


@pytest.mark.parametrize("name", ["accuracy", "val_accuracy", "acc", "top5", "top5_accuracy", "precision@1"])
def test_shares_of_samples_are_known_by_their_names(name):
    assert Metric(name).may_be_share
    assert not Metric(name, unit="%").may_be_share
    assert not Metric(name, lower_is_better=True).may_be_share


@pytest.mark.parametrize("name", ["f1", "auc", "map", "bleu", "quality", "r2", "stop5"])
def test_other_metrics_from_0_to_1_are_no_shares_of_samples(name):
    assert not Metric(name).may_be_share
