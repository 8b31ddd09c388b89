"""Faults: what they add to the seconds of a run, beside the closed form of its mean."""

import math

import numpy as np
import pytest

from istbench.base.errors import UserError
from istbench.cluster.faults import DRAWS, Faults, expected_seconds, with_faults


def faults(mtbf_s, restart_s=90.0, checkpoint_s=60.0):
    return Faults(mtbf_s=mtbf_s, restart_s=restart_s, checkpoint_s=checkpoint_s)


def expected(segments, nodes, of):
    """The mean: for a segment of L seconds at rate r, (1/r + restart) (exp(r L) - 1)."""
    rate = nodes / of.mtbf_s
    return sum((1 / rate + of.restart_s) * math.expm1(rate * length) for length in segments)


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("mtbf_s", [2000.0, 20_000.0])
def test_the_mean_is_that_of_the_formula(nodes, mtbf_s):
    of = faults(mtbf_s)
    found = with_faults([100.0 * number for number in range(1, 20)], 2000.0, nodes, of)
    wanted = expected([100.0] * 20, nodes, of)
    assert found.seconds.mean() == pytest.approx(wanted, abs=4 * found.seconds.std() / math.sqrt(DRAWS))
    assert np.allclose(found.seconds, 2000.0 + found.lost_s + found.restarting_s)
    assert np.all(found.restarting_s % of.restart_s == 0)


def test_the_seconds_of_each_evaluation_are_those_means():
    """Checkpoints at 60 and 130: an evaluation between two begins at the one before it."""
    at, of = [0.0, 60.0, 119.0, 130.0, 140.0, 180.0], faults(500.0)
    found = expected_seconds(at, 2, of)
    segments = ([], [60], [60, 59], [60, 70], [60, 70, 10], [60, 70, 50])
    assert found == pytest.approx([expected(of_one, 2, of) for of_one in segments])
    assert expected_seconds(at, 2, faults(1e12)) == pytest.approx(at)


def test_without_faults_nothing_is_added():
    found = with_faults([100.0], 200.0, 2, faults(1e15))
    assert np.all(found.seconds == 200.0)


def test_checkpoints_follow_evaluations_and_lie_apart():
    """Saved at 60, 130 and 200, not at 119 and 140; what comes after the end counts as nothing."""
    of = faults(500.0)
    found = with_faults([60.0, 119.0, 130.0, 140.0, 200.0, 290.0], 250.0, 1, of)
    same = with_faults([60.0, 130.0, 200.0], 250.0, 1, of)
    assert np.array_equal(found.seconds, same.seconds)


def test_faults_that_leave_no_time_between_checkpoints_are_refused():
    with pytest.raises(UserError, match="a fault of a node every 1 min would end 8 nodes over 1,000 times"):
        with_faults([], 250.0, 8, faults(60.0))
