"""Counting over seeds."""

import math
import random

import pytest

from istbench.results.stats import estimate, interval_name, median, speed_up

MISS = math.inf


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], 3.0),
        ([3.0, 1.0, 2.0], 2.0),
        ([1.0, 2.0], 1.5),
        ([0.1, 0.1], 0.1),
        ([1.0, 2.0, MISS], 2.0),
        ([1.0, MISS], MISS),
        ([1.0, 2.0, 3.0, MISS], 2.5),
        ([1.0, 2.0, MISS, MISS], MISS),
        ([1.0, MISS, MISS], MISS),
        ([MISS, MISS], MISS),
    ],
)
def test_a_miss_is_infinite_in_the_median(values, expected):
    assert median(values) == expected


def test_the_median_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_one_seed():
    found = estimate([2.0])
    assert (found.median, found.low, found.high, found.reached, found.seeds) == (2.0, 2.0, 2.0, 1, 1)


def test_identical_values_have_an_interval_of_no_width():
    for count in (3, 7):
        found = estimate([0.1] * count)
        assert (found.median, found.low, found.high) == (0.1, 0.1, 0.1)


def test_below_five_seeds_the_interval_is_the_range():
    found = estimate([4.0, 1.0, 2.0, MISS])
    assert (found.median, found.low, found.high, found.reached, found.seeds) == (3.0, 1.0, MISS, 3, 4)
    assert interval_name(found.seeds) == "min–max"


def test_from_five_seeds_the_interval_is_a_bootstrap_and_always_the_same():
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    found = estimate(values)
    assert found == estimate(values)
    assert found.median == 3.0
    assert 1.0 <= found.low < 3.0 < found.high <= 100.0
    assert interval_name(found.seeds) == "bootstrap 95 % interval"
    assert estimate([10 + n / 100 for n in range(100)]).high < 10.75


def test_the_bootstrap_never_takes_a_mean_with_a_miss():
    found = estimate([1.0, 1.1, 1.2, MISS, MISS])
    assert (found.median, found.high, found.reached) == (1.2, MISS, 3)
    assert math.isfinite(found.low)


def test_all_missed():
    found = estimate([MISS] * 6)
    assert (found.median, found.low, found.high, found.reached) == (MISS, MISS, MISS, 0)


def test_nan_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        estimate([1.0, math.nan])


def test_speed_ups_are_paired_by_seed():
    found = speed_up({0: 10.0, 1: 40.0, 2: 30.0, 7: 1.0}, {0: 5.0, 1: 10.0, 2: 10.0, 9: 1.0})
    assert (found.ratio.median, found.ratio.low, found.ratio.high, found.pairs) == (3.0, 2.0, 4.0, 3)
    assert not found.baseline_missed


def test_without_a_shared_seed_there_is_no_speed_up():
    assert speed_up({0: 1.0}, {1: 1.0}) is None
    assert speed_up({}, {}) is None


def test_where_the_baseline_never_got_there_no_number_is_printed():
    found = speed_up({0: MISS, 1: MISS}, {0: 1.0, 1: 2.0})
    assert found.ratio is None
    assert found.baseline_missed


@pytest.mark.parametrize(
    ("baseline", "method"),
    [
        ({0: 1.0, 1: 2.0}, {0: MISS, 1: MISS}),
        ({0: MISS}, {0: MISS}),
        ({0: MISS, 1: 4.0}, {0: 1.0, 1: MISS}),
        ({0: 4.0, 1: 4.0}, {0: 1.0, 1: MISS}),
    ],
)
def test_where_the_method_missed_too_often_no_number_is_printed(baseline, method):
    found = speed_up(baseline, method)
    assert found.ratio is None
    assert not found.baseline_missed


def test_one_miss_of_three_leaves_a_median_with_an_open_end():
    found = speed_up({0: 4.0, 1: MISS, 2: 6.0}, {0: 2.0, 1: 2.0, 2: 2.0})
    assert (found.ratio.median, found.ratio.high, found.pairs) == (3.0, MISS, 3)
    found = speed_up({0: 4.0, 1: 6.0, 2: 6.0}, {0: 2.0, 1: MISS, 2: 2.0})
    assert (found.ratio.median, found.ratio.low) == (2.0, 0.0)


def test_a_target_reached_before_training_has_no_ratio():
    assert speed_up({0: 0.0}, {0: 0.0}) is None
    assert speed_up({0: 3.0, 1: 4.0}, {0: 0.0, 1: 2.0}).pairs == 1


@pytest.mark.parametrize("count", [5, 6, 11])
def test_the_interval_is_that_of_resamples_drawn_one_by_one(count):
    values = [random.Random(count).choice([MISS, random.Random(k).uniform(1, 9)]) for k in range(count)]
    generator = random.Random(0)
    medians = sorted(median(generator.choices(values, k=count)) for _ in range(2000))
    found = estimate(values)
    assert (found.low, found.high) == (medians[49], medians[1950])
