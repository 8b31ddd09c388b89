"""The trials of a method, and the best of them."""

from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, Rate
from istbench.base.options.options import build_options
from istbench.results.metrics import Metric
from istbench.studies.tuning.ranges import Range
from istbench.studies.tuning.trials import Trial, Tried, best, places, spread, trials_of

LR = Range(name="lr", low=0.001, high=1, scale="log", whole=False)
STEPS = Range(name="local_steps", low=1, high=64, scale="log", whole=True)
ACCURACY, LOSS = Metric("accuracy"), Metric("loss", lower_is_better=True)


@dataclass(frozen=True, kw_only=True)
class Options:
    lr: Rate = 0.01
    local_steps: Count = 4

    def __post_init__(self):
        if self.local_steps % 2:
            raise UserError(f"local_steps={self.local_steps} must be even")


def build(given):
    return build_options(Options, given, "method 'mine'", {})


def trials(count, ranges=(LR, STEPS), seed=0, **fixed):
    return trials_of("mine", ranges, count, seed, build, fixed)


def test_the_first_trial_has_the_defaults_and_all_differ():
    found = trials(20)
    assert found[0].options == {}
    assert found[0].settings == {"lr": 0.01, "local_steps": 4}
    assert [trial.number for trial in found] == list(range(1, 21))
    assert len({str(trial.settings) for trial in found}) == 20
    for trial in found[1:]:
        assert LR.low <= trial.options["lr"] <= LR.high
        assert trial.options["local_steps"] in range(2, 65, 2), "a point that the method refuses is passed over"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), few=st.integers(1, 8), more=st.integers(0, 8))
def test_more_trials_begin_with_the_trials_of_fewer(seed, few, more):
    assert trials(few + more, seed=seed)[:few] == trials(few, seed=seed)


def test_another_seed_gives_other_trials():
    assert trials(4, seed=1)[1:] != trials(4)[1:]


def test_methods_try_the_same_learning_rates():
    alone, beside = trials(8, (LR,)), trials_of("mine", (LR, STEPS), 8, 0, lambda own: Steps(**own), {})
    assert [trial.options.get("lr") for trial in alone] == [trial.options.get("lr") for trial in beside]


@dataclass(frozen=True, kw_only=True)
class Steps:
    lr: float = 0.01
    local_steps: int = 4


def test_the_points_cover_each_side_of_the_cube_evenly():
    drawn = list(islice(places(("lr", "local_steps", "momentum"), 5), 64))
    for side in zip(*drawn, strict=True):
        assert [sum(int(place * 8) == part for place in side) for part in range(8)] == pytest.approx([8] * 8, abs=1)


def test_fixed_options_stand_in_every_trial_and_are_read_as_typed():
    found = trials(3, (LR,), local_steps="8")
    assert {trial.settings["local_steps"] for trial in found} == {8}
    assert found[2].typed_options == {"local_steps": 8, "lr": found[2].options["lr"]}


def test_ranges_with_too_few_settings_are_refused_with_the_reason():
    narrow = Range(name="local_steps", low=1, high=6, scale="linear", whole=True)
    assert len(trials(3, (narrow,))) == 3  # 2, 4 (the default) and 6
    with pytest.raises(UserError, match=r"has 3 different settings in its ranges, not 4.*must be even"):
        trials(4, (narrow,))


def tried(*values, seconds=(), failed=()):
    return [
        Tried(
            trial=Trial(method="mine", number=number, options={}, settings={}),
            value=value,
            failed=number in failed,
            seconds=dict(enumerate(seconds, start=1)).get(number),
        )
        for number, value in enumerate(values, start=1)
    ]


def number_of_best(metric, *values, **others):
    found = best(tried(*values, **others), metric)
    return found and found.trial.number


def test_the_best_has_the_best_metric_in_its_direction():
    assert number_of_best(ACCURACY, 0.1, 0.3, 0.2) == 2
    assert number_of_best(LOSS, 0.1, 0.3, 0.2) == 1
    assert number_of_best(ACCURACY, 0.3, 0.3) == 1, "of equal trials the first"


def test_a_diverged_or_failed_trial_is_never_the_best():
    assert number_of_best(ACCURACY, None, 0.1) == 2
    assert number_of_best(LOSS, 0.5, 0.1, failed=(2,)) == 1
    assert number_of_best(ACCURACY, None, None) is None
    assert number_of_best(ACCURACY, 0.5, failed=(1,)) is None


def test_who_reaches_the_target_first_is_the_best_whatever_the_metric_at_the_end():
    assert number_of_best(ACCURACY, 0.9, 0.8, 0.85, seconds=(9.0, 3.0, 5.0)) == 2
    assert number_of_best(ACCURACY, 0.9, 0.8, seconds=(None, 3.0)) == 2
    assert number_of_best(ACCURACY, 0.3, 0.4, seconds=(None, None)) == 2, "all missed: the best metric"


@settings(deadline=None)
@given(st.permutations([0.1, None, 0.3, 0.2]))
def test_the_spread_has_the_numbers_only(values):
    assert spread(tried(*values), by_seconds=False) == [0.1, 0.2, 0.3]
    assert spread(tried(*values, seconds=(4.0, None, 2.0)), by_seconds=True) == [2.0, 4.0]
