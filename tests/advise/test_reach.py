"""Steps to a target: crossings seen by a probe, and those beyond its end."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import ACCURACY, candidate, curve

from istbench.advise.candidate import Candidate
from istbench.advise.reach import TOO_FEW, judged, reach_of, steps_to
from istbench.results.metrics import Metric

LOSS = Metric("loss", lower_is_better=True)


def power(exponent, steps, *, ceiling=0.95, metric=ACCURACY, noise=0.0):
    sign = -1 if metric.lower_is_better else 1
    random = np.random.default_rng(3)
    points = [
        (step, sign * (ceiling - 0.9 * (step / 10) ** -exponent) + noise * random.standard_normal())
        for step in steps
    ]
    return Candidate(method="a", label="a", curves={0: curve(points, metric)})


def test_a_crossing_within_the_probe_is_interpolated_as_in_tables():
    found = steps_to(candidate("a", steps=(100, 140)), 0.4)
    assert {seed: (steps.median, steps.low, steps.high) for seed, steps in found.items()} == {
        0: (pytest.approx(50),) * 3,
        1: (pytest.approx(70),) * 3,
    }
    assert not any(steps.extrapolated for steps in found.values())


@pytest.mark.parametrize("metric", [ACCURACY, LOSS])
def test_a_power_law_is_continued_in_either_direction(metric):
    probe = power(0.5, range(10, 110, 10), metric=metric)
    level = 0.95 - 0.9 * 20**-0.5  # at step 200
    (steps,) = steps_to(probe, -level if metric.lower_is_better else level).values()
    assert steps.extrapolated
    assert steps.low < 200 < steps.high
    assert steps.median == pytest.approx(200, rel=0.1)


def test_a_curve_that_is_flat_below_the_target_never_reaches_it():
    probe = power(2.0, range(10, 210, 10), ceiling=0.6, noise=0.001)
    (steps,) = steps_to(probe, 0.7).values()
    assert (steps.median, steps.low, steps.high, steps.extrapolated) == (math.inf, math.inf, math.inf, True)
    flat = Candidate(method="a", label="a", curves={0: curve([(step, 0.6) for step in range(0, 60, 10)])})
    assert steps_to(flat, 0.7)[0].median == math.inf


def test_a_single_evaluation_short_of_the_target_tells_nothing():
    """It does not tell that the target is never reached: a line through it may go anywhere."""
    single, longer = curve([(0, 0.0), (10, 0.5)]), curve([(0, 0.0), (10, 0.5), (20, 0.6)])
    one = Candidate(method="a", label="a", curves={0: single}, trace=object())
    assert judged(one, 0.7).why_not == TOO_FEW
    assert judged(one, 0.7).steps_probed == 10
    assert judged(one, 0.4) == one, "a crossing before it counts"
    assert judged(dataclasses.replace(one, curves={0: single, 1: longer}), 0.7).curves == {1: longer}
    assert judged(dataclasses.replace(one, failed="a worker ended"), 0.7).why_not == "a worker ended"


def test_a_curve_without_numbers_never_reaches_the_target():
    diverged = Candidate(
        method="a", label="a", curves={0: curve([(0, 0.1), (10, None), (20, None)])}, trace=object()
    )
    assert judged(diverged, 0.7) == diverged
    assert steps_to(diverged, 0.7)[0].median == math.inf


def test_evaluations_without_a_number_do_not_count():
    points = [(step, None if step == 50 else 0.9 - 0.9 * (step / 10) ** -0.5) for step in range(10, 110, 10)]
    (steps,) = steps_to(Candidate(method="a", label="a", curves={0: curve(points)}), 0.7).values()
    assert steps.low < 202 < steps.high


@given(noise=st.floats(0, 0.01), exponent=st.floats(0.2, 1.2), beyond=st.floats(1.05, 6))
def test_ranges_are_behind_the_probe_and_widen_with_the_distance(noise, exponent, beyond):
    probe = power(exponent, range(10, 210, 10), noise=noise)
    best = probe.curves[0].best()
    level = 0.95 - 0.9 * (20 * beyond) ** -exponent
    if level <= best + 1e-6:
        return
    near, far = (reach_of(probe, target, draws=300, seed=0).by_seed[0] for target in ((best + level) / 2, level))
    assert (near >= 200).all()
    assert np.quantile(near, 0.5, method="lower") <= np.quantile(far, 0.5, method="lower")
    assert np.isfinite(near).mean() >= np.isfinite(far).mean()


def test_without_doubt_each_seed_has_one_number_of_steps():
    reach = reach_of(power(0.5, range(10, 110, 10), noise=0.01), 0.8, draws=300, seed=0)
    assert len(np.unique(reach.by_seed)) > 100
    assert len(np.unique(reach.without_doubt().by_seed)) == 1
