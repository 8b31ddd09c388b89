"""The ranges in which options are tuned."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.base.options.numbers import Count, Rate
from istbench.base.options.tunable import LEARNING_RATE, LOCAL_STEPS, Tunable
from istbench.node.registry import load_method, registered
from istbench.studies.tuning.ranges import GivenRange, Range, check_known, given_ranges, ranges_of


@dataclass(frozen=True, kw_only=True)
class Options:
    local_steps: Count = field(default=20, metadata={"tune": LOCAL_STEPS})
    momentum: Rate = 0.0
    lr: Rate = field(default=0.01, metadata={"tune": LEARNING_RATE})
    alpha: Rate = field(default=0.5, metadata={"tune": Tunable(low=0, high=0.9)})
    kind: str = "plain"


def ranges(*texts, options=None, **changed):
    fields = {"by_seconds": True, **changed}
    return ranges_of("mine", options or Options(), given_ranges(texts), **fields)


@settings(deadline=None)
@given(
    low=st.floats(1e-6, 1e3),
    ratio=st.floats(1.01, 1e6),
    place=st.floats(0, 1, exclude_max=True),
    scale=st.sampled_from(["log", "linear"]),
    whole=st.booleans(),
)
def test_a_value_is_inside_its_range_and_rises_with_its_place(low, ratio, place, scale, whole):
    low, high = (max(1, round(low)), max(2, round(low * ratio)) + 1) if whole else (low, low * ratio)
    own = Range(name="lr", low=low, high=high, scale=scale, whole=whole)
    value, later = own.at(place), own.at((1 + place) / 2)
    assert low <= value <= later <= high
    assert isinstance(value, int) == whole


def test_every_whole_number_of_a_range_is_about_as_likely():
    own = Range(name="accumulate", low=1, high=4, scale="linear", whole=True)
    drawn = [own.at((number + 0.5) / 400) for number in range(400)]
    assert [drawn.count(value) for value in (1, 2, 3, 4)] == [100] * 4


def test_a_log_range_has_as_many_values_in_each_decade():
    own = Range(name="lr", low=0.001, high=1, scale="log", whole=False)
    assert [own.at(place) for place in (0, 1 / 3, 2 / 3, 1)] == pytest.approx([0.001, 0.01, 0.1, 1])
    assert own.at(0.123456) == float(f"{own.at(0.123456):.3g}")


def test_multiples_of_the_default_come_first_by_learning_rate():
    lr, steps, alpha = ranges(options=Options(lr=0.2, local_steps=2))
    assert (lr.name, lr.low, lr.high, lr.whole) == ("lr", 0.02, 6.0, False)
    assert (steps.name, steps.low, steps.high, steps.whole) == ("local_steps", 1, 8, True)
    assert (alpha.low, alpha.high) == (0, 0.9)


def test_equal_steps_do_not_judge_an_option_that_changes_the_cost_of_a_step():
    assert [own.name for own in ranges(by_seconds=False)] == ["lr", "alpha"]
    given_by_name = ranges("local_steps=2:64", by_seconds=False)
    assert [own.name for own in given_by_name] == ["lr", "local_steps", "alpha"]


def test_an_option_with_a_value_is_not_tuned():
    assert [own.name for own in ranges(left_out={"lr"})] == ["local_steps", "alpha"]


def test_a_range_of_the_user_may_be_of_any_number():
    found = {own.name: own for own in ranges("momentum=0:0.95", "lr=.1:1:linear", "local_steps=1:100")}
    assert found["momentum"] == Range(name="momentum", low=0.0, high=0.95, scale="linear", whole=False)
    assert found["lr"].scale == "linear"
    assert (found["local_steps"].scale, found["local_steps"].high) == ("log", 100)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr", "write NAME=LOW:HIGH"),
        ("lr=1", "write NAME=LOW:HIGH"),
        ("lr=1:", "write NAME=LOW:HIGH"),
        ("=1:2", "write NAME=LOW:HIGH"),
        ("lr=1:2:cubic", "no scale; use one of log, linear"),
        ("lr=1:1", "1.0 is not below 1.0"),
        ("lr=x:1", "--range lr of method 'mine'"),
        ("lr=-1:1", "--range lr of method 'mine'"),
        ("local_steps=1.5:3", "--range local_steps of method 'mine'"),
        ("momentum=0:1:log", "a log scale starts above 0"),
        ("kind=1:2", "the option is no number; choose a value with --set kind=VALUE"),
    ],
)
def test_a_wrong_range_says_so_in_one_line(text, said):
    with pytest.raises(UserError) as error:
        ranges(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_range_twice_and_a_range_of_no_method_are_refused():
    with pytest.raises(UserError, match="'lr' is given twice"):
        given_ranges(["lr=1:2", "lr=1:3"])
    with pytest.raises(UserError, match="local_step"):
        check_known(["local_step"], {"ist": {"lr", "local_steps"}, "ddp": {"lr"}})
    check_known(["local_steps"], {"ist": {"lr", "local_steps"}, "ddp": {"lr"}})


def test_the_slices_of_p3_are_tuned_by_seconds_alone():
    options = load_method("p3").Options()
    found = {own.name: own for own in ranges_of("p3", options, {}, by_seconds=True)}
    slices, window = found["slice_params"], found["window"]
    assert (slices.low, slices.high, window.low, window.high) == (12_500, 200_000, 1, 8)
    assert [own.name for own in ranges_of("p3", options, {}, by_seconds=False)] == ["lr"]


@pytest.mark.parametrize("name", [own.name for own in registered("methods")])
def test_every_method_declares_a_learning_rate_and_ranges_with_values_of_its_options(name):
    options = load_method(name).Options()
    found = ranges_of(name, options, {}, by_seconds=True)
    assert found[0].name == "lr"
    for own in found:
        ends = [GivenRange(name=own.name, low=str(own.low), high=str(own.high))]
        (again,) = (
            r for r in ranges_of(name, options, {e.name: e for e in ends}, by_seconds=True) if r.name == own.name
        )
        assert (again.low, again.high, again.whole) == (own.low, own.high, own.whole)
