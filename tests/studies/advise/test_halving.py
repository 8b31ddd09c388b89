"""Successive halving with fabricated curves and a clock that only probes move."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probes import curve

from istbench.results.metrics import Metric
from istbench.studies.advise.halving import (
    FEWEST_EVALUATIONS,
    FINALISTS,
    Cost,
    Halving,
    Rung,
    RungResult,
    affordable,
    most_candidates,
    needed_steps,
    rung_results,
    rungs_of,
    survivors,
    value_at,
)
from istbench.studies.advise.probe import longest_by_seed

TARGET = 0.8


class FakeTrainer:
    """Candidates that rise in a straight line, to the target at their own step, each step as long as its own.

    reached: step of the target by label. step_s: seconds of a step on the cluster by label. favourites: those that
    may well be first, one list after another; the last one stays.
    """

    def __init__(self, seconds, reached, step_s=None, cost=None, fails=(), diverges=(), favourites=((),)):
        self.diverges = set(diverges)
        self.answers = list(favourites)
        self.left, self.reached, self.fails = seconds, reached, set(fails)
        self.step_s = step_s or dict.fromkeys(reached, 1.0)
        self.costs = cost or Cost(start_s=1.0, evaluation_s=0.01, step_s=0.01)
        self.costs_of = {}
        self.trained = []

    def train(self, label, rung, seed):
        if label in self.fails:
            return None
        last = min(rung.steps, -(-self.reached[label] // rung.every) * rung.every)
        steps = [*range(0, last, rung.every), last]
        seconds = self.costs_of.get(label, self.costs).seconds(last, len(steps))
        if seconds > self.left:
            return None
        self.left -= seconds
        self.trained.append((label, rung.steps, seed))
        if (label, seed) in self.diverges:
            return None
        found = curve([(step, TARGET * step / self.reached[label]) for step in steps])
        return dataclasses.replace(found, seconds=tuple(self.step_s[label] * step for step in steps))

    def failed(self, label, seed=None):
        return label in self.fails or (label, seed) in self.diverges

    def cost(self, label):
        return self.costs_of.get(label, self.costs)

    def left_s(self):
        return self.left

    def favourites(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def halved(trainer, labels=None, **changed):
    planned = []
    halving = Halving(labels or list(trainer.reached), trainer, TARGET, plan=planned.append, **changed)
    halving.run()
    return halving, planned


def test_a_seed_that_diverges_ends_neither_its_candidate_nor_the_others():
    halved(trainer := FakeTrainer(400.0, {"a": 200, "b": 300}, diverges={("a", 1)}))
    seeds = {label: {seed for own, _, seed in trainer.trained if own == label} for label in "ab"}
    assert seeds == {"a": {0, 1, 2, 3, 4}, "b": {0, 1, 2, 3, 4}}


def test_an_answer_has_the_command_of_the_longest_probe_of_each_seed():
    runs = {(397, 0): "short", (2477, 0): "reached", (1062, 1): "other seed"}
    assert longest_by_seed(runs) == ["other seed", "reached"]


def test_the_fastest_to_the_target_end_in_the_last_rung_with_several_seeds():
    reached = {f"m{number}": 2000 + 1000 * number for number in range(8)}
    halving, planned = halved(trainer := FakeTrainer(400.0, reached))
    assert planned[0].labels[0] == "m0"
    assert set(planned[-1].labels) == {"m0", "m1"}
    assert {seed for label, _, seed in trainer.trained if label == "m0"} >= {0, 1}
    assert set(halving.stopped) == set(reached) - {"m0", "m1"}


def test_speed_on_the_cluster_counts_and_not_local_steps():
    # `slow` needs fewer steps, but each takes ten times as long there.
    reached, step_s = {"slow": 300, "fast": 600, "other": 700}, {"slow": 10.0, "fast": 1.0, "other": 1.0}
    _, planned = halved(FakeTrainer(100.0, reached, step_s))
    assert set(planned[-1].labels) == {"fast", "other"}


def test_time_that_probes_leave_goes_to_further_candidates():
    """Probes that end early at the target leave time for those that the plan had no time for."""
    reached = {f"m{number}": 30 + number for number in range(12)}
    trainer = FakeTrainer(60.0, reached, cost=Cost(start_s=1.0, evaluation_s=0.01, step_s=0.01))
    first = most_candidates(60.0, [trainer.costs] * 12)
    _, planned = halved(trainer)
    assert len(planned[0].labels) == first < len({label for label, _, _ in trainer.trained})
    assert planned[1].steps == planned[0].steps
    assert not set(planned[1].labels) & set(planned[0].labels)


def test_a_coarse_look_at_the_target_is_followed_by_a_finer_one():
    _, planned = halved(FakeTrainer(200.0, {"a": 40, "b": 50}))
    assert planned[0].every > 50  # both reached the target before their first evaluation
    assert any(rung.every <= 10 and rung.steps < planned[0].steps for rung in planned)


@given(
    st.floats(1, 2000),
    st.lists(st.integers(10, 100_000), min_size=1, max_size=12),
    st.floats(0.1, 20),
    st.floats(0, 2),
    st.floats(1e-4, 1),
)
def test_probes_never_take_more_than_the_time(seconds, reached, start, evaluation, step):
    cost = Cost(start_s=start, evaluation_s=evaluation, step_s=step)
    trainer = FakeTrainer(seconds, {f"m{number}": at for number, at in enumerate(reached)}, cost=cost)
    _, planned = halved(trainer)
    assert trainer.left >= 0
    for rung in planned:
        assert len({*rung.labels}) == len(rung.labels)
    assert len(set(trainer.trained)) == len(trainer.trained), "a probe was trained twice"


def test_an_interrupted_command_trains_its_own_rungs_again_and_goes_on():
    reached = {f"m{number}": 2000 + 1000 * number for number in range(6)}
    _, whole = halved(FakeTrainer(300.0, reached))
    again, planned = halved(trainer := FakeTrainer(300.0, reached), earlier=whole[:2])
    before = [(label, rung.steps, 0) for rung in whole[:2] for label in rung.labels]
    assert trainer.trained[: len(before)] == before
    assert not any(rung in whole[:2] for rung in planned)
    assert set(again.stopped) == set(reached) - {"m0", "m1"}


def test_those_that_may_well_be_first_train_as_long_as_the_last_two():
    """An answer extrapolates, so a candidate that a rung has stopped may still be first."""
    reached = {f"m{number}": 20_000 + 1000 * number for number in range(6)}
    _, planned = halved(trainer := FakeTrainer(300.0, reached, favourites=[["m0", "m5", "m4"]]))
    longest = max(rung.steps for rung in planned)
    whole = [label for label, steps, seed in trainer.trained if (steps, seed) == (longest, 0)]
    assert len(whole) == 5
    assert whole[-2:] == ["m5", "m4"]


def test_one_that_may_well_be_first_trains_for_the_time_that_is_left():
    reached = {f"m{number}": 20_000 + 1000 * number for number in range(6)}
    trainer = FakeTrainer(300.0, reached, favourites=[["m5"]])
    trainer.costs_of["m5"] = Cost(start_s=1.0, evaluation_s=0.01, step_s=0.04)
    halving, planned = halved(trainer)
    longest = max(rung.steps for rung in planned)
    (part,) = (rung for rung in planned if rung.labels == ("m5",))
    assert longest / 4 < part.steps < longest
    assert halving.stopped["m5"] == part.steps
    assert {*planned[-1].labels} in ({"m5"}, {"m0", "m1"}), "then the time is up, or the finalists have more seeds"


def test_further_seeds_are_of_the_favourite_and_the_best_other():
    reached = {f"m{number}": 20_000 + 1000 * number for number in range(5)} | {"m5": 3000}
    step_s = dict.fromkeys(reached, 1.0) | {"m5": 100.0}  # a rung stops it by its seconds
    halving, planned = halved(FakeTrainer(300.0, reached, step_s, favourites=[["m5"]]))
    assert ["m5"] in [list(rung.labels) for rung in planned]
    assert [set(rung.labels) for rung in planned if rung.seeds == (1,)] == [{"m5", "m0"}]
    assert "m5" not in halving.stopped


def test_an_interrupted_favourite_goes_on():
    reached = {f"m{number}": 20_000 + 1000 * number for number in range(6)}
    whole, rungs = halved(FakeTrainer(300.0, reached, favourites=[["m5"]]))
    (place,) = (number for number, rung in enumerate(rungs) if rung.labels == ("m5",))
    again, planned = halved(FakeTrainer(300.0, reached, favourites=[["m5"]]), earlier=rungs[: place + 1])
    assert planned == rungs[place + 1 :]
    assert again.stopped == whole.stopped


def test_a_favourite_that_fails_stops_nobody():
    reached = {f"m{number}": 20_000 + 1000 * number for number in range(6)}

    class Failing(FakeTrainer):
        def train(self, label, rung, seed):
            if len(rung.labels) == 1:
                self.fails.add(label)
            return super().train(label, rung, seed)

    _, planned = halved(Failing(300.0, reached, favourites=[["m5"], []]))
    assert planned[-1].seeds != (0,)
    assert set(planned[-1].labels) == {"m0", "m1"}


def test_a_finalist_that_fails_in_a_later_seed_has_no_further_ones():
    class Failing(FakeTrainer):
        def train(self, label, rung, seed):
            if (label, seed) == ("m0", 1):
                self.fails.add(label)
            return super().train(label, rung, seed)

    _, planned = halved(Failing(2000.0, {"m0": 500, "m1": 600}))
    assert [set(rung.labels) for rung in planned if rung.seeds == (1,)] == [{"m0", "m1"}]
    assert [set(rung.labels) for rung in planned if rung.seeds == (2,)] == [{"m1"}]


def test_more_time_makes_the_last_two_train_longer():
    reached = {f"m{number}": 200_000 + 1000 * number for number in range(6)}
    _, before = halved(FakeTrainer(300.0, reached))
    longest = max(rung.steps for rung in before)
    trainer = FakeTrainer(3000.0, reached)
    _, planned = halved(trainer, earlier=before)
    assert planned[0].steps > 2 * longest
    assert set(planned[0].labels) == {"m0", "m1"}
    assert [rung for rung in planned if rung.seeds == (0,)] == planned[:1], "then the time is used up, or for seeds"


def test_the_same_time_again_makes_nobody_train_longer():
    reached = {f"m{number}": 200_000 + 1000 * number for number in range(6)}
    _, before = halved(FakeTrainer(300.0, reached, favourites=[["m5"]]))
    _, planned = halved(FakeTrainer(300.0, reached, favourites=[["m5"]]), earlier=before)
    assert planned == []


def test_the_minutes_left_go_to_the_untested_before_further_seeds():
    reached = {"a": 300, "b": 400, "slow": 500}
    trainer = FakeTrainer(90.0, reached)
    trainer.costs_of["slow"] = Cost(start_s=30.0, evaluation_s=0.01, step_s=0.01)
    halving, planned = halved(trainer)
    assert "slow" not in planned[0].labels
    order = [(label, seed) for label, _, seed in trainer.trained]
    assert ("slow", 0) in order
    assert all(order.index(("slow", 0)) < order.index(place) for place in order if place[1] > 0)
    assert halving.stopped.get("slow") != 0


def test_if_all_have_no_time_for_a_longer_rung_the_better_half_goes_on():
    reached = {f"m{number}": 20_000 + 1000 * number for number in range(8)}
    trainer = FakeTrainer(60.0, reached, cost=Cost(start_s=4.0, evaluation_s=0.01, step_s=0.01))
    halving, planned = halved(trainer, least=8)
    assert len(planned[0].labels) == 8
    assert planned[1].steps > planned[0].steps
    assert len(planned[1].labels) < 4
    assert "m0" in planned[1].labels
    assert set(halving.stopped) >= {"m5", "m6", "m7"}


def test_a_candidate_that_fails_stops_nobody_else():
    reached = {f"m{number}": 1000 + 100 * number for number in range(4)}
    trainer = FakeTrainer(200.0, reached, fails={"m0"})
    _, planned = halved(trainer)
    assert set(planned[-1].labels) == {"m1", "m2"}


def test_no_time_trains_nothing():
    trainer = FakeTrainer(0.0, {"a": 100, "b": 100})
    assert halved(trainer)[1] == []
    assert trainer.trained == []


def test_the_first_probes_are_tried_even_if_their_guessed_cost_is_too_high():
    trainer = FakeTrainer(5.0, {"a": 1000, "b": 1000}, cost=Cost(start_s=1.0, evaluation_s=0.01, step_s=0.01))
    guessed = Cost(start_s=30.0, evaluation_s=0.01, step_s=0.01)
    trainer.cost = lambda label: trainer.costs if trainer.trained else guessed
    _, planned = halved(trainer)
    assert (planned[0].steps, planned[0].labels) == (20, ("a", "b"))
    assert trainer.trained[:2] == [("a", 20, 0), ("b", 20, 0)]


def test_the_first_rung_has_as_many_as_asked_for_if_starts_take_long():
    trainer = FakeTrainer(
        120.0, {f"m{number}": 1000 for number in range(6)}, cost=Cost(start_s=20.0, evaluation_s=0.1, step_s=0.01)
    )
    _, planned = halved(trainer, least=4)
    assert planned[0].labels == ("m0", "m1", "m2", "m3")


@pytest.mark.parametrize(("count", "rungs"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16, 4)])
def test_rungs_halve_to_two(count, rungs):
    assert rungs_of(count) == rungs


@given(st.floats(0, 1e4), st.lists(st.tuples(*[st.floats(1e-3, 60)] * 3), min_size=1, max_size=10))
def test_affordable_steps_fit_in_the_seconds(seconds, costs):
    costs = [Cost(start_s=start, evaluation_s=evaluation, step_s=step) for start, evaluation, step in costs]
    steps, evaluations = affordable(seconds, costs)
    assert evaluations >= FEWEST_EVALUATIONS
    if steps:
        assert sum(cost.seconds(steps, evaluations) for cost in costs) <= seconds + 1e-6
        assert sum(cost.seconds(steps + 1, evaluations) for cost in costs) > seconds - 1e-6


def test_few_candidates_start_if_a_start_takes_long():
    cheap, dear = (Cost(start_s=start, evaluation_s=0.0, step_s=0.01) for start in (0.1, 20.0))
    assert most_candidates(300.0, [cheap] * 10) == 10
    assert most_candidates(300.0, [dear] * 10) < 5
    counts = [most_candidates(seconds, [dear] * 10) for seconds in (5, 25, 50, 200, 1000, 10_000)]
    assert counts == sorted(counts)
    assert counts[:3] == [0, 1, FINALISTS]


def test_rung_results_compare_at_equal_seconds():
    ends_early = dataclasses.replace(curve([(0, 0.0), (10, 0.4)]), seconds=(0.0, 10.0))
    rises_late = dataclasses.replace(curve([(0, 0.0), (10, 0.2), (20, 0.7)]), seconds=(0.0, 10.0, 20.0))
    found = rung_results({"early": ends_early, "late": rises_late}, TARGET)
    assert (found["early"].value, found["late"].value) == (0.4, 0.2)
    assert survivors({**found, "third": RungResult(reached_s=float("inf"), value=0.3)}) == ["early", "third"]


def test_a_falling_metric_ranks_from_below():
    losses = Metric("loss", lower_is_better=True)
    curves = {name: curve([(0, 3.0), (10, end)], losses) for name, end in (("low", 1.0), ("high", 2.0))}
    found = rung_results(curves, None)
    assert survivors({**found, "worst": RungResult(reached_s=float("inf"), value=-9.0)}) == ["low", "high"]


def test_who_reached_the_target_stands_before_who_did_not():
    inf = float("inf")
    found = {
        "near": RungResult(reached_s=inf, value=0.79),
        "there": RungResult(reached_s=50.0, value=0.5, reached_step=10.0),
        "sooner": RungResult(reached_s=40.0, value=0.4, reached_step=10.0),
    }
    assert survivors(found) == ["sooner", "there"]
    assert needed_steps(list(found.values())) is None
    assert needed_steps([found["there"], found["sooner"]]) == 15


def test_the_value_at_a_second_lies_between_evaluations():
    found = curve([(0, 0.0), (10, 1.0), (20, None), (30, 0.5)])
    assert [value_at(found, seconds) for seconds in (0, 5, 10, 20, 30, 99)] == [0.0, 0.5, 1.0, 0.75, 0.5, 0.5]
    assert value_at(curve([(0, None)]), 0) is None


def test_rungs_have_distinct_seeds_for_the_same_steps():
    trainer = FakeTrainer(400.0, {"a": 500, "b": 600})
    _, planned = halved(trainer, most_seeds=3)
    seeds = [(rung.steps, rung.seeds) for rung in planned]
    assert len(set(seeds)) == len(seeds)
    assert max(seed for _, (seed,) in seeds) == 2
    assert all(isinstance(rung, Rung) for rung in planned)
    assert not list(itertools.filterfalse(lambda rung: set(rung.labels) == {"a", "b"}, planned))
