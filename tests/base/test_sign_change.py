"""Where a falling function changes its sign."""

import math

import pytest

from istbench.base.sign_change import sign_change


@pytest.mark.parametrize("root", [0.001, 37.5, 99_999.0])
@pytest.mark.parametrize("exponent", [1, 0.2, 5])
def test_a_change_is_found_with_few_calls(root, exponent):
    calls = []

    def function(place):
        calls.append(place)
        return math.copysign(abs(root - place) ** exponent, root - place)

    low, high = sign_change(function, 0.0, 1e5, near=1e-4)
    assert low <= root <= high
    assert high - low <= 1e-4
    assert len(calls) < 130


def test_ends_on_a_grid_are_neighbours():
    function = lambda place: math.inf if place < 10 else 1234.5 - place  # noqa: E731
    middle = lambda low, high, share: min(max(low + 1, math.ceil(low + share * (high - low))), high - 1)  # noqa: E731
    assert sign_change(function, 0, 10_000, near=1, between=middle) == (1234, 1235)


def test_a_value_close_to_0_ends_the_search():
    low, high = sign_change(lambda place: 1.0 - place, 0.0, 10.0, near=0.0, exact=1e-9)
    assert low == high == pytest.approx(1.0)


def test_an_end_stands_for_a_change_beyond_it():
    assert sign_change(lambda place: 1.0, 0.0, 10.0, near=1.0) == (10.0, 10.0)
    assert sign_change(lambda place: 0.0, 0.0, 10.0, near=1.0) == (0.0, 0.0)
