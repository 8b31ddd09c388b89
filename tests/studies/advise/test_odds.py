"""The odds that a candidate is first."""

import itertools
import math

import numpy as np
import pytest
from fake_runs import averaging_trace
from hypothesis import given
from hypothesis import strategies as st
from probes import LINKS, candidate, clock, curve, drawn, straight

from istbench.cluster.replay_checks import known_checks
from istbench.cluster.trace_builder import TraceBuilder, merge
from istbench.studies.advise.candidate import Candidate
from istbench.studies.advise.draws import BANDWIDTH, PROBE, replay_error
from istbench.studies.advise.odds import first, odds, worth_probing
from istbench.studies.advise.seconds import (
    BANDWIDTHS,
    at_mean_pace,
    candidate_clock,
    mean_error,
    mean_step_s,
    seconds_to,
)

SECONDS = st.lists(
    st.lists(st.sampled_from([1.0, 2.0, 3.5, math.inf]), min_size=6, max_size=6), min_size=1, max_size=5
)


@given(SECONDS)
def test_odds_and_those_of_nobody_add_up_to_one(rows):
    seconds = np.array(rows)
    assert first(seconds).sum() + np.isinf(seconds).all(axis=0).mean() == pytest.approx(1)


def test_a_candidate_that_is_far_ahead_is_first_for_sure():
    found = odds([candidate("a"), candidate("b", compute=0.05, steps=(200,))], LINKS, 0.8)
    assert (found.verdict, found.ranked[0].candidate.label, found.ranked[0].odds) == ("clear", "a", 1.0)
    ahead = found.ranked[0]
    # A step computes 10 ms and sends 1 MB at 100 MB/s.
    assert ahead.seconds == pytest.approx(100 * 0.02, rel=0.03)
    assert ahead.low < ahead.seconds < ahead.high
    assert ahead.steps == pytest.approx(100, rel=0.01)
    assert (ahead.computing, ahead.exposed) == (pytest.approx(0.5, abs=0.02), pytest.approx(0.5, abs=0.02))
    assert found.decide is None


def test_equal_candidates_are_too_close_to_call():
    found = odds([candidate("a"), candidate("b")], LINKS, 0.8)
    assert found.verdict == "close"
    assert [one.odds for one in found.ranked] == [pytest.approx(0.5, abs=0.05)] * 2


def test_a_seed_that_diverged_lowers_the_odds_by_its_share():
    some, slow = candidate("a", steps=(100, 110), diverged=1), candidate("b", compute=0.05, steps=(200,))
    sure, doubtful = odds([some, slow], LINKS, 0.8).ranked
    assert (sure.candidate.label, sure.high < math.inf) == ("b", True), "below clear odds, no range without an end"
    assert (doubtful.candidate.seeds, doubtful.seconds < sure.seconds, doubtful.high) == (3, True, math.inf)
    assert doubtful.odds == pytest.approx(doubtful.reaching) == pytest.approx(2 / 3, abs=0.03)
    assert sure.odds == pytest.approx(1 / 3, abs=0.03)


def test_a_target_that_nobody_reaches_has_no_first():
    flat = {0: curve([(step, 0.5) for step in range(0, 100, 10)])}
    found = odds([candidate("a", curves=flat), candidate("b", curves=flat)], LINKS, 0.8)
    assert (found.verdict, found.nobody, [one.odds for one in found.ranked]) == ("none", 1.0, [0.0, 0.0])
    assert all(math.isinf(one.seconds) for one in found.ranked)
    assert odds([], LINKS, 0.8).verdict == "none"


def unlikely(label, **changed):
    """A candidate that reaches the target in two draws of five: its seeds differ, and most are flat."""
    flat = [(step, 0.5) for step in range(0, 130, 10)]
    curves = {seed: straight(100) if seed < 2 else curve(flat) for seed in range(5)}
    return candidate(label, curves=curves, **changed)


def test_nobody_is_recommended_who_misses_the_target_in_most_draws():
    found = odds([unlikely("a"), unlikely("b"), unlikely("c")], LINKS, 0.8)
    assert found.nobody == pytest.approx(0.6**3, abs=0.03)
    assert (found.verdict, found.decide) == ("none", None)
    # The unlikely one is far faster, so its odds are higher.
    found = odds([unlikely("fast", compute=0.001), candidate("sure", compute=0.1), unlikely("b")], LINKS, 0.8)
    first, second, third = found.ranked
    assert (first.candidate.label, found.verdict) == ("sure", "close")
    assert math.isfinite(first.seconds)
    assert second.odds > first.odds > third.odds
    assert [one.candidate.label for one in (second, third)] == ["fast", "b"]


def test_a_candidate_that_failed_or_has_no_trace_is_never_first():
    slow = candidate("slow", compute=1.0)
    others = [candidate("failed", failed="a worker ended"), candidate("bare", trace=None)]
    others.append(candidate("empty", curves={}))
    assert [one.why_not for one in others] == ["a worker ended", "no trace to replay", "no evaluation of a probe"]
    found = odds([*others, slow], LINKS, 0.8)
    assert [(one.candidate.label, one.odds) for one in found.ranked] == [("slow", 1.0)]
    assert [(one.label, one.why_not) for one in found.without] == [
        ("bare", "no trace to replay"),
        ("empty", "no evaluation of a probe"),
        ("failed", "a worker ended"),
    ]


def test_the_widest_range_has_the_best_odds_and_is_not_recommended():
    rivals = [candidate(f"rival{number}", compute=0.02, curves={0: straight(102)}) for number in range(6)]
    wide = candidate("wide", compute=0.022, curves={0: curve([(step, 0.008 * step) for step in range(0, 40, 10)])})
    found = odds([*rivals, wide], LINKS, 0.8)
    by_label = {one.candidate.label: one for one in found.ranked}
    assert by_label["wide"].odds == max(one.odds for one in found.ranked)
    assert found.ranked[0].candidate.label != "wide"
    assert found.ranked[0].seconds * found.ranked[0].high == min(one.seconds * one.high for one in found.ranked)


def test_one_that_got_there_is_before_one_that_may_get_there_sooner_or_never():
    there = candidate("there", curves={0: straight(1000, every=50)})
    rising = [(0, 0.0), *((step, 0.2 + 0.15 * math.log2(step / 100)) for step in range(100, 300, 50))]
    sooner = candidate("sooner", curves={0: curve(rising)}, compute=0.024)
    found = odds([there, sooner], LINKS, 0.8)
    by_label = {one.candidate.label: one for one in found.ranked}
    assert by_label["sooner"].seconds < by_label["there"].seconds < by_label["there"].high < by_label["sooner"].high
    assert found.verdict == "close"
    assert found.ranked[0].candidate.label == "there"


def test_a_longer_probe_goes_to_the_first_to_ddp_beyond_the_probes_and_to_the_likely():
    near, slow = candidate("near"), candidate("slow", compute=1.0)
    reached = odds([near, slow, candidate("other", compute=0.0101)], LINKS, 0.8)
    assert {*worth_probing(reached, ["slow"])} == {"near", "other"}
    beyond = odds([near, slow], LINKS, 0.99)
    assert worth_probing(beyond, ["slow"]) == ["near", "slow"]
    never = candidate("never", curves={0: curve([(step, 0.5) for step in range(0, 100, 10)])})
    assert worth_probing(odds([never], LINKS, 0.8), ["slow"]) == ["slow"]


def test_the_order_of_candidates_changes_nothing():
    some = [candidate("a"), candidate("b", steps=(100, 120)), candidate("c", compute=0.012)]
    figures = [
        {one.candidate.label: (one.odds, one.seconds, one.low, one.high) for one in odds(order, LINKS, 0.8).ranked}
        for order in itertools.permutations(some)
    ]
    assert all(found == figures[0] for found in figures)


@given(gap=st.floats(1.01, 1.5), small=st.floats(0.001, 0.2), more=st.floats(1.1, 5), by_bandwidth=st.floats(0, 1))
def test_less_spread_makes_the_first_more_certain(gap, small, more, by_bandwidth):
    clocks = {"a": clock(1.0, by_bandwidth=by_bandwidth), "b": clock(gap, by_bandwidth=by_bandwidth)}
    steps = {"a": [100], "b": [100]}
    certain, doubtful = (
        first(drawn(clocks, steps, seed_spread=spread, candidates=ALIKE).seconds())
        for spread in (small, small * more)
    )
    assert certain[0] >= doubtful[0]


ALIKE = tuple(Candidate(method="ddp", label=label) for label in "ab")
"""Two candidates of one method, which share the error of its replays."""


def test_candidates_of_one_method_share_the_error_of_its_replays_and_all_share_the_bandwidth():
    clocks = {"a": clock(1.0, by_bandwidth=1.0), "b": clock(1.1, by_bandwidth=1.0)}
    found = drawn(clocks, {"a": [100], "b": [100]}, seed_spread=0.0, candidates=ALIKE).seconds()
    assert found.std(axis=1).min() > 5
    assert found[1] / found[0] == pytest.approx(1.1)


def test_a_step_takes_the_mean_of_what_all_probes_recorded():
    fast, slow = (averaging_trace(2, compute=(compute,), size=8, local_steps=1) for compute in (0.01, 0.03))
    there = at_mean_pace([fast, slow], LINKS)
    assert mean_step_s(there) == pytest.approx(0.02)
    assert mean_step_s(at_mean_pace([fast], LINKS)) == pytest.approx(mean_step_s(fast)) == pytest.approx(0.01)
    assert mean_step_s(fast) == pytest.approx(0.01), "the trace itself stays"


def test_a_later_run_differs_from_its_replay_by_the_measured_spread():
    clocks, steps = {"a": clock(1.0), "b": clock(1.0)}, {"a": [100], "b": [100]}
    (a, b), (late, other) = (
        drawn(clocks, steps, seed_spread=0.0, run_spread=spread, candidates=ALIKE).seconds()
        for spread in (0.0, 0.07)
    )
    assert a.tolist() == b.tolist()
    assert np.log(late / a).std() == pytest.approx(0.07, rel=0.1)
    assert np.corrcoef(late / a, other / b)[0, 1] == pytest.approx(0, abs=0.15)


def test_the_seconds_follow_the_replays_at_other_bandwidths():
    one = candidate("a", local_steps=4)
    there = candidate_clock(one, LINKS)
    for factor in (*BANDWIDTHS, 0.83, 1.14):
        found = there.at(np.array([37.0]), np.array([factor]), np.array([1.0]))[0]
        assert found == pytest.approx(seconds_to(one.trace, LINKS.with_links(factor), 37.0), rel=0.01)
    slower = there.at(np.array([37.0]), np.array([1.0]), np.array([1.2]))[0]
    assert slower - found == pytest.approx(37 * 0.2 * 0.01, rel=0.3)


def test_the_spread_of_the_recorded_steps_is_in_the_draws():
    def recorded(*seconds, exchange=0.5, local_steps):
        builder = TraceBuilder(clock=lambda: 0.0)
        for step, spent in enumerate(seconds, start=1):
            builder.compute(spent)
            if step % local_steps == 0:
                builder.compute(exchange)
                builder.mark("round")
            builder.mark("step")
        return mean_error(merge([builder.to_arrays()] * 2, gflops=100.0, batch_size=1))

    # Two nodes of the same spread; neither the step that exchanges nor the mean of the exchange counts.
    share = 2 / np.sqrt(3) / 11 / np.sqrt(2)
    assert recorded(9.0, 11.0, 13.0, 11.0, local_steps=4) == pytest.approx(share)
    assert recorded(9.0, 11.0, 13.0, exchange=0.0, local_steps=1) == pytest.approx(share)
    assert recorded(9.0, local_steps=1) == 0.0
    assert mean_error(candidate("a").trace) == pytest.approx(0.0, abs=1e-12)

    some = drawn({"a": clock(1.0, mean_error=0.1), "b": clock(1.0)}, {"a": [100], "b": [100]}, seed_spread=0.0,
                 candidates=ALIKE, draws=4000)  # fmt: skip
    for seconds, without in ((some.seconds(), ""), (some.seconds("computing"), "computing")):
        ratio = seconds[0] / seconds[1]
        assert ratio.std() == pytest.approx(0.0 if without else 0.05, rel=0.1, abs=1e-9)


def test_the_error_of_replays_is_as_wide_as_the_check_of_the_method():
    check = known_checks()["ddp"]
    mean, spread = replay_error("ddp", {})
    assert mean == check.mean
    largest = [
        np.abs(np.random.default_rng(seed).normal(0, spread, check.measurements)).max() for seed in range(2000)
    ]
    assert np.median(largest) == pytest.approx(abs(check.largest - mean), rel=0.1)
    assert replay_error("never checked", {})[1] >= max(replay_error(method, {})[1] for method in known_checks())


@pytest.mark.parametrize(
    ("source", "clocks", "steps"),
    [
        (
            BANDWIDTH,
            {"ddp": clock(1.0, by_bandwidth=1.0), "zero": clock(1.1)},
            {"ddp": [100] * 9, "zero": [100] * 9},
        ),
        ("replay odd", {"odd": clock(1.0), "zero": clock(1.06)}, {"odd": [100] * 9, "zero": [100] * 9}),
    ],
)
def test_taking_the_largest_source_of_doubt_away_raises_the_odds(source, clocks, steps):
    some = drawn(clocks, steps, seed_spread=0.01, draws=2000)
    with_all = first(some.seconds()).max()
    raised = {one: first(some.seconds(one)).max() for one in (source, BANDWIDTH, "computing", "seeds")}
    assert max(raised, key=raised.get) == source
    assert raised[source] > with_all + 0.02


def test_a_longer_probe_decides_where_the_target_is_far_beyond():
    short = {0: curve([(step, 0.95 - 0.9 * (step / 10) ** -0.5) for step in range(10, 60, 10)])}
    found = odds([candidate("ddp", curves=short), candidate("zero", compute=0.011, curves=short)], LINKS, 0.8)
    assert found.verdict == "close"
    assert all(one.extrapolated for one in found.ranked)
    assert found.decide is not None
    assert found.decide.kind == PROBE
    assert found.decide.odds > found.ranked[0].odds


def test_odds_of_nine_in_ten_are_right_nine_times_in_ten():
    """Truth drawn from the same model: seeds, errors of replays and bandwidth as the odds take them."""
    random = np.random.default_rng(1)
    told, right = [], []
    for trial in range(600):
        means = dict(zip("ab", random.uniform(-0.25, 0.25, 2), strict=True))
        shares = dict(zip("ab", random.uniform(0, 0.8, 2), strict=True))
        clocks = {label: clock(1.0, by_bandwidth=share) for label, share in shares.items()}
        seeds = random.integers(1, 4)
        probed = {label: list(100 * np.exp(means[label] + 0.06 * random.standard_normal(seeds))) for label in "ab"}
        methods = tuple(Candidate(method=method, label=label) for label, method in (("a", "ddp"), ("b", "zero")))
        won = first(drawn(clocks, probed, draws=300, seed=trial, candidates=methods).seconds())
        factor = np.array([random.uniform(0.8, 1.2)])
        truth = []
        for one in methods:
            mean, error = replay_error(one.method, {})
            steps = np.array([100 * np.exp(means[one.label] + 0.06 * random.standard_normal())])
            seconds = clocks[one.label].at(steps, factor, np.ones(1))[0]
            truth.append(seconds / (1 + mean + error * random.standard_normal()))
        told.append(won.max())
        right.append(int(np.argmax(won)) == int(np.argmin(truth)))
    told, right = np.array(told), np.array(right)
    near = (told > 0.85) & (told < 0.95)
    assert near.sum() > 60
    assert right[near].mean() == pytest.approx(told[near].mean(), abs=0.1)
    assert right.mean() == pytest.approx(told.mean(), abs=0.04)
