"""Steps to a target: crossings seen by a probe, and those beyond its end."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import ACCURACY, candidate, curve

from istbench.results.metrics import Metric
from istbench.studies.advise.candidate import Candidate
from istbench.studies.advise.signed_curve import SignedCurve
from istbench.studies.advise.steps_to_target import TOO_FEW, LeaderFit, judged, steps_to_target

DRAWS = 400
LOSS = Metric("loss", lower_is_better=True)


def power(exponent, steps, *, ceiling=0.95, metric=ACCURACY, noise=0.0):
    sign = -1 if metric.lower_is_better else 1
    random = np.random.default_rng(3)
    points = [
        (step, sign * (ceiling - 0.9 * (step / 10) ** -exponent) + noise * random.standard_normal())
        for step in steps
    ]
    return Candidate(method="a", label="a", curves={0: curve(points, metric)})


def steps_of(probe, target, *others, draws=DRAWS):
    """The steps to `target` of `probe` beside `others`."""
    return steps_to_target([probe, *others], target, draws=draws, seed=0)[probe.label]


def quantiles(draws):
    """The low end, the middle and the high end of draws."""
    return np.quantile(draws, (0.1, 0.5, 0.9), method="lower").tolist()


def shaped(label, *, scale=1.0, until=1000, every=20, metric=ACCURACY):
    """A candidate that reaches 0.8 at step 1000, times `scale`; it ends at `until`."""
    sign = -1 if metric.lower_is_better else 1
    levels = [(step, 0.8 * math.log1p(step / scale) / math.log1p(1000)) for step in range(0, until + 1, every)]
    points = [(step, sign * level) for step, level in levels]
    return Candidate(method=label, label=label, curves={0: curve(points, metric)}, trace=object())


def test_a_crossing_within_the_probe_is_interpolated_as_in_tables():
    found = steps_of(candidate("a", steps=(100, 140)), 0.4)
    assert found.by_seed == pytest.approx(np.tile([[50.0], [70.0]], DRAWS))
    assert not found.extrapolated.any()


def test_a_seed_that_diverged_never_reaches_the_target():
    found = steps_of(candidate("a", steps=(100, 140), diverged=1), 0.4)
    assert np.isinf(found.by_seed).all(axis=1).tolist() == [False, False, True]
    assert not found.extrapolated.any(), "a longer probe would not tell more of it"


@pytest.mark.parametrize("metric", [ACCURACY, LOSS])
def test_a_power_law_is_continued_in_either_direction(metric):
    probe = power(0.5, range(10, 110, 10), metric=metric)
    level = 0.95 - 0.9 * 20**-0.5  # at step 200
    found = steps_of(probe, -level if metric.lower_is_better else level, draws=2000)
    assert found.extrapolated.all()
    low, middle, high = quantiles(found.by_seed)
    assert low < 200 < high
    assert middle == pytest.approx(200, rel=0.1)


def test_a_curve_that_is_flat_below_the_target_never_reaches_it():
    found = steps_of(power(2.0, range(10, 210, 10), ceiling=0.6, noise=0.001), 0.7)
    assert quantiles(found.by_seed) == [math.inf] * 3
    assert found.extrapolated.all()
    flat = Candidate(method="a", label="a", curves={0: curve([(step, 0.6) for step in range(0, 60, 10)])})
    assert np.isinf(steps_of(flat, 0.7).by_seed).all()


def test_a_single_evaluation_short_of_the_target_tells_nothing_alone():
    """It does not tell that the target is never reached: a line through it may go anywhere."""
    single, longer = curve([(0, 0.0), (10, 0.5)]), curve([(0, 0.0), (10, 0.5), (20, 0.6)])
    one = Candidate(method="a", label="a", curves={0: single}, trace=object())
    (found,) = judged([one], 0.7)
    assert (found.why_not, found.steps_probed) == (TOO_FEW, 10)
    assert judged([one], 0.4) == [one], "a crossing before it counts"
    (both,) = judged([dataclasses.replace(one, curves={0: curve([(0, 0.0), (10, 0.7)]), 1: longer})], 0.8)
    assert both.curves == {1: longer}, "the single one is ahead of the longer one"
    assert judged([dataclasses.replace(one, failed="a worker ended")], 0.7)[0].why_not == "a worker ended"


def test_a_single_evaluation_counts_beside_a_curve_that_is_further():
    long, one = shaped("long"), shaped("one", scale=2.0, until=20)
    assert judged([one, long], 0.7)[0] == one
    assert judged([shaped("one", scale=0.001, until=20), long], 1.2)[0].why_not == TOO_FEW, "it is ahead"
    bare = dataclasses.replace(long, trace=None)
    assert judged([one, bare], 0.7)[0].why_not == TOO_FEW, "a candidate without seconds has no draws to follow"


@pytest.mark.parametrize("metric", [ACCURACY, LOSS])
def test_a_curve_goes_on_as_one_that_is_further_does(metric):
    long, short = shaped("long", metric=metric), shaped("short", scale=2.0, until=100, metric=metric)
    level = -0.8 if metric.lower_is_better else 0.8
    assert quantiles(steps_of(long, level, short).by_seed) == pytest.approx([1000] * 3)
    found = steps_of(short, level, long)
    low, middle, high = quantiles(found.by_seed)
    assert middle == pytest.approx(2000, rel=0.1)
    assert low < 0.9 * middle < 1.1 * middle < high
    assert found.extrapolated.all()


def test_a_curve_that_falls_behind_its_leader_does_so_further():
    leader = shaped("leader")
    falls = [
        (step, 0.8 * math.log1p(step**0.8) / math.log1p(1000)) for step in range(0, 401, 20)
    ]  # its slope is 0.8
    late = Candidate(method="late", label="late", curves={0: curve(falls)})
    low, middle, high = quantiles(steps_of(late, 0.8, leader).by_seed)
    assert middle == pytest.approx(1000 ** (1 / 0.8), rel=0.15)
    assert low < middle < high


def test_a_flat_curve_never_gets_where_its_leader_does():
    flat = Candidate(method="a", label="a", curves={0: curve([(step, 0.5) for step in range(0, 400, 20)])})
    assert np.isinf(steps_of(flat, 0.8, shaped("leader")).by_seed).mean() > 0.5


@pytest.mark.parametrize("begin", [20, 100])
def test_a_short_probe_that_stays_where_its_leader_stayed_takes_as_many_steps(begin):
    long = [(step, 0.2 if step <= 140 else 0.2 + 0.3 * math.log2(step / 140)) for step in range(begin, 1001, 20)]
    leader = Candidate(method="leader", label="leader", curves={0: curve(long)})
    short = Candidate(method="a", label="a", curves={0: curve([(step, 0.2) for step in (40, 60, 80, 100)])})
    low, middle, high = quantiles(steps_of(short, 0.8, leader).by_seed)
    (true,) = {*steps_of(leader, 0.8).by_seed[0]}
    assert middle == pytest.approx(true, rel=0.25)
    assert low < 0.6 * true
    assert high > 1.6 * true


def test_a_target_in_the_noise_of_the_leader_has_a_wide_range():
    random = np.random.default_rng(1)
    levels = [0.5 * (1 - math.exp(-step / 200)) + 0.03 * random.standard_normal() for step in range(0, 2001, 50)]
    noisy = Candidate(
        method="b", label="b", curves={0: curve([(50 * at, value) for at, value in enumerate(levels)])}
    )
    probe = Candidate(
        method="a", label="a",
        curves={0: curve([(step, 0.5 * (1 - math.exp(-step / 200))) for step in range(0, 601, 100)])},
    )  # fmt: skip
    low, middle, high = quantiles(steps_of(probe, max(levels) - 0.005, noisy).by_seed)
    assert low < middle < high
    assert high > 3 * low


@pytest.mark.filterwarnings("error")
def test_a_leader_at_the_target_from_the_start_gives_steps_that_are_numbers():
    steps = np.array([0.0, 0.0, 5.0, math.inf])
    curves = [SignedCurve.of(shaped("a", until=until).curves[0]) for until in (100, 400)]
    found = LeaderFit.of(*curves, ("long", 0)).steps(steps, np.array([-1.0, 1.0, 0.0, 0.0]))
    assert np.isfinite(found).tolist() == [True, True, True, False]


def test_nobody_follows_a_schedule_while_another_curve_is_there():
    late = dataclasses.replace(shaped("late", scale=0.8), options={"schedule": "cosine"})
    steady, probe = shaped("steady"), shaped("probe", until=200)
    assert np.array_equal(steps_of(probe, 0.8, steady, late).by_seed, steps_of(probe, 0.8, steady).by_seed)
    assert np.isfinite(steps_of(probe, 0.8, late).by_seed).all()


def test_two_curves_share_the_doubt_of_their_leader():
    random = np.random.default_rng(3)
    levels = [(step, 0.95 - 0.95 * (1 + step) ** -0.3) for step in range(0, 1001, 20)]
    noisy = [(step, level + 0.004 * random.standard_normal()) for step, level in levels]
    long = Candidate(method="long", label="long", curves={0: curve(noisy)})
    found = steps_to_target([long, shaped("a", until=400), shaped("b", until=400)], 0.87, draws=DRAWS, seed=0)
    never = [np.isinf(one.by_seed[0]).tolist() for one in found.values()]
    assert 0 < sum(never[0]) < DRAWS
    assert never[0] == never[1] == never[2]


def test_a_curve_ahead_of_all_others_follows_its_own_law():
    short = power(0.5, range(10, 60, 10))
    slow = Candidate(method="b", label="b", curves={0: curve([(step, 1e-4 * step) for step in range(0, 501, 10)])})
    assert np.array_equal(steps_of(short, 0.8, slow).by_seed, steps_of(short, 0.8).by_seed)


def test_a_curve_without_numbers_never_reaches_the_target():
    diverged = Candidate(
        method="a", label="a", curves={0: curve([(0, 0.1), (10, None), (20, None)])}, trace=object()
    )
    assert judged([diverged, shaped("long")], 0.7)[0] == diverged
    assert np.isinf(steps_of(diverged, 0.7, shaped("long")).by_seed).all()


def test_evaluations_without_a_number_do_not_count():
    points = [(step, None if step == 50 else 0.9 - 0.9 * (step / 10) ** -0.5) for step in range(10, 110, 10)]
    low, _, high = quantiles(steps_of(Candidate(method="a", label="a", curves={0: curve(points)}), 0.7).by_seed)
    assert low < 202 < high


@given(noise=st.floats(0, 0.01), exponent=st.floats(0.2, 1.2), beyond=st.floats(1.05, 6), beside=st.booleans())
def test_ranges_are_behind_the_probe_and_widen_with_the_distance(noise, exponent, beyond, beside):
    probe = power(exponent, range(10, 210, 10), noise=noise)
    best = probe.curves[0].best()
    level = 0.95 - 0.9 * (20 * beyond) ** -exponent
    if level <= best + 1e-6:
        return
    others = [dataclasses.replace(power(exponent, range(10, 2010, 10)), label="long")] if beside else []
    near, far = (steps_of(probe, target, *others).by_seed[0] for target in ((best + level) / 2, level))
    assert (near >= 200).all()
    assert np.quantile(near, 0.5, method="lower") <= np.quantile(far, 0.5, method="lower")
    assert np.isfinite(near).mean() >= np.isfinite(far).mean()


VALUES = st.lists(st.one_of(st.none(), st.floats(-2, 2)), max_size=6)


@given(curves=st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=4), every=st.integers(1, 50))
def test_any_curves_have_draws_that_are_numbers_and_not_before_their_end(curves, every):
    candidates = [
        Candidate(
            method="a",
            label=str(number),
            curves={
                seed: curve([(every * place, value) for place, value in enumerate(values)])
                for seed, values in enumerate(seeds)
            },
        )
        for number, seeds in enumerate(curves)
    ]
    for one, found in zip(candidates, steps_to_target(candidates, 1.0, draws=20, seed=0).values(), strict=True):
        assert found.by_seed.shape == (len(one.curves), 20)
        for own, draws, beyond in zip(one.curves.values(), found.by_seed, found.extrapolated, strict=True):
            numbers = [at.step for at, value in zip(own.evaluations, own.values, strict=True) if value is not None]
            assert (draws >= (max(numbers, default=0) if beyond else 0)).all()
    judged(candidates, 1.0)


def test_without_doubt_each_seed_has_one_number_of_steps():
    found = steps_of(power(0.5, range(10, 110, 10), noise=0.01), 0.8)
    assert len(np.unique(found.by_seed)) > 100
    assert len(np.unique(found.without_doubt().by_seed)) == 1
