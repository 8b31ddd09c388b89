"""Counting over seeds."""

import math
import random

import pytest

from istbench.results.stats import coverage, interval_name, median, seed_median, speed_up

MISS = math.inf
DRAWS = 4000


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
    with pytest.raises(ValueError, match="no median"):
        median([])


def test_one_seed():
    found = seed_median([2.0])
    assert (found.median, found.low, found.high, found.reached, found.seeds) == (2.0, 2.0, 2.0, 1, 1)


def test_identical_values_have_an_interval_of_no_width():
    for count in (3, 7):
        found = seed_median([0.1] * count)
        assert (found.median, found.low, found.high) == (0.1, 0.1, 0.1)


def test_below_five_seeds_the_interval_is_the_range():
    found = seed_median([4.0, 1.0, 2.0, MISS])
    assert (found.median, found.low, found.high, found.reached, found.seeds) == (3.0, 1.0, MISS, 3, 4)
    assert interval_name(found.seeds) == "min–max, a 87.5 % interval"


COVERAGE = {
    3: (0, "min–max, a 75 % interval"),
    4: (0, "min–max, a 87.5 % interval"),
    5: (0, "min–max, a 93.8 % interval"),
    6: (0, "min–max, a 96.9 % interval"),
    7: (0, "min–max, a 98.4 % interval"),
    8: (0, "min–max, a 99.2 % interval"),
    9: (1, "96.1 % interval"),
    10: (1, "97.9 % interval"),
    11: (1, "98.8 % interval"),
    12: (2, "96.1 % interval"),
}


@pytest.mark.parametrize("seeds", COVERAGE)
def test_an_interval_says_its_coverage_and_has_it(seeds):
    cut, name = COVERAGE[seeds]
    assert interval_name(seeds) == name
    draw, held = random.Random(seeds), 0
    for _ in range(DRAWS):
        values = [draw.random() for _ in range(seeds)]
        found = seed_median(values)
        assert (found.low, found.high) == (sorted(values)[cut], sorted(values)[-1 - cut])
        held += found.low <= 0.5 <= found.high
    spread = math.sqrt(coverage(seeds) * (1 - coverage(seeds)) / DRAWS)
    assert held / DRAWS == pytest.approx(coverage(seeds), abs=4 * spread)


def test_of_one_seed_the_interval_covers_nothing():
    assert coverage(1) == 0


def test_an_interval_never_takes_a_mean_with_a_miss():
    found = seed_median([1.0, 1.1, 1.2, MISS, MISS])
    assert (found.median, found.high, found.reached) == (1.2, MISS, 3)
    assert math.isfinite(found.low)


def test_all_missed():
    found = seed_median([MISS] * 6)
    assert (found.median, found.low, found.high, found.reached) == (MISS, MISS, MISS, 0)


def test_nan_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        seed_median([1.0, math.nan])


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
