"""When evaluations fall, after local steps and after train seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from istbench.base.options.interval import Interval
from istbench.node.schedule import EvaluationSchedule, TrainingSpeed

INTERVALS = st.one_of(
    st.integers(1, 100).map(lambda steps: Interval(steps=steps)),
    st.floats(1e-3, 1e9).map(lambda seconds: Interval(seconds=seconds)),
)
UNKNOWN = TrainingSpeed(0, 0.0)


def trained(schedule, step_s, stops=()):
    """Evaluations of a run as (step, train seconds), and how often the ranks compared their clocks.

    step_s: seconds of each local step, by its number. stops: steps at which the run stops, and then resumes.
    """
    step, seconds, speed, compared = 0, 0.0, UNKNOWN, []
    evaluations, stops = [], set(stops)

    def agreed_s():
        compared.append(seconds)
        return seconds

    while step < schedule.last and (schedule.max_seconds is None or seconds < schedule.max_seconds):
        first, began, ends = step, seconds, []
        due_s = schedule.due_s(seconds)
        end = schedule.end(step, seconds, due_s, speed)
        while True:
            stopped = False
            for number in schedule.steps(end, due_s, step, seconds, speed, agreed_s, ends.append):
                if stopped := number in stops:
                    stops.remove(number)
                    break
                assert number == step < (ends or [end])[-1]
                step, seconds = step + 1, seconds + step_s(number)
            if not stopped:
                break
            speed = TrainingSpeed(step, seconds) if step else UNKNOWN
        speed = TrainingSpeed(step - first, seconds - began)
        evaluations.append((step, seconds))
    return evaluations, len(compared)


def steps_of(*words, **more):
    return [step for step, _ in trained(*words, **more)[0]]


def in_steps(every, last, round_steps=1):
    return EvaluationSchedule(every=Interval(steps=every), last=last, round_steps=round_steps)


def in_seconds(every, last, round_steps=1, limit=None):
    return EvaluationSchedule(every=Interval(seconds=every), last=last, round_steps=round_steps, max_seconds=limit)


def test_steps_fall_on_multiples_also_after_a_resumption():
    every = in_steps(5, 12)
    assert [every.end(first, 0.0, None, UNKNOWN) for first in (0, 5, 7, 10)] == [5, 10, 10, 12]
    assert steps_of(every, lambda _: 1.0) == steps_of(every, lambda _: 1.0, stops=[2, 7, 10]) == [5, 10, 12]
    assert trained(every, lambda _: 1.0)[1] == 0


def test_an_evaluation_that_is_due_inside_a_round_waits_for_its_end():
    assert [in_steps(5, 30, 4).end(first, 0.0, None, UNKNOWN) for first in (0, 8, 12, 16)] == [8, 12, 16, 20]
    assert in_steps(5, 30, 4).end(28, 0.0, None, UNKNOWN) == 30
    assert in_steps(5, 12, 100_000).end(0, 0.0, None, UNKNOWN) == 12
    assert steps_of(in_steps(5, 30, 4), lambda _: 1.0, stops=[6]) == [8, 12, 16, 20, 28, 30]


def test_seconds_become_steps_by_the_speed_so_far():
    every = in_seconds(2.0, 1000)
    assert every.end(0, 0.0, 2.0, UNKNOWN) == 10
    assert every.end(10, 0.5, 2.0, TrainingSpeed(10, 0.5)) == 10 + 30
    assert every.end(970, 48.5, 50.0, TrainingSpeed(40, 2.0)) == 1000
    assert in_seconds(100.0, 10**9).end(10, 1e-6, 100.0, TrainingSpeed(10, 1e-6)) == 10 + 100
    assert in_seconds(2.0, 1000, 20).end(10, 0.5, 2.0, TrainingSpeed(10, 0.5)) == 40


@pytest.mark.parametrize("round_steps", [1, 5])
@pytest.mark.parametrize("slower", [1.0, 2.4 / 1.7, 0.7])
def test_evaluations_come_in_time_though_steps_change_their_speed(slower, round_steps):
    """As measured with 887 million weights: from 1.7 s a step to 2.4 s."""
    for changes in (2, 300, 706, 1000, 1300, 1400):
        evaluations, compared = trained(
            in_seconds(1200.0, 4000, round_steps), lambda step, at=changes: 1.7 * (slower if step >= at else 1.0)
        )
        *whole, _ = [seconds for _, seconds in evaluations]
        for number, seconds in enumerate(whole, 1):
            assert 1200 * number <= seconds < 1200 * number + 60 + 2.4 * round_steps
        assert compared <= 6 * len(evaluations)


def test_steady_steps_are_evaluated_at_the_first_one_in_time_with_few_comparisons():
    evaluations, compared = trained(in_seconds(30.0, 10_000), lambda _: 0.07)
    assert [seconds for _, seconds in evaluations[:-1]] == pytest.approx(
        [30 * number for number in range(1, 24)], abs=0.08
    )
    assert compared <= 4 * len(evaluations)


def test_a_step_that_takes_longer_than_the_interval_is_evaluated_each_time():
    assert steps_of(in_seconds(0.1, 40), lambda _: 5.0)[1:] == list(range(11, 41))
    assert steps_of(in_seconds(0.1, 60, 20), lambda _: 5.0) == [20, 40, 60]


def test_a_run_that_stops_and_resumes_is_evaluated_at_the_same_seconds():
    every, whole = in_seconds(100.0, 1000), [100.0 * number for number in range(1, 11)]
    assert [seconds for _, seconds in trained(every, lambda _: 1.0)[0]] == whole
    assert [seconds for _, seconds in trained(every, lambda _: 1.0, stops=[1, 50, 99, 399, 400])[0]] == whole
    # Inside a round in which the evaluation has become due, the resumed run still ends that round with it.
    assert steps_of(in_seconds(100.0, 900, 300), lambda _: 1.0, stops=[150, 500]) == [300, 600, 900]


def test_seconds_of_a_run_that_are_used_up_inside_a_round_end_it():
    assert steps_of(in_seconds(1e-9, 100_000, 100_000, limit=1e-6), lambda _: 1.0) == [10]
    (end, *more), compared = trained(in_seconds(10.0, 100_000, 100_000, limit=25.0), lambda _: 0.1)
    assert not more
    assert 25.0 <= end[1] <= 35.0
    assert compared < 20
    every = EvaluationSchedule(every=Interval(steps=3), last=12, round_steps=100_000, max_seconds=1e-9)
    assert steps_of(every, lambda _: 1.0) == [3]


@given(
    every=INTERVALS,
    round_steps=st.integers(1, 150),
    last=st.integers(1, 200),
    step_s=st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=5),
    limit=st.none() | st.floats(1e-9, 1e9),
)
def test_a_segment_goes_on_and_ends_with_a_round_or_the_run(every, round_steps, last, step_s, limit):
    schedule = EvaluationSchedule(every=every, last=last, round_steps=round_steps, max_seconds=limit)
    evaluations, _ = trained(schedule, lambda step: step_s[step % len(step_s)])
    steps = [step for step, _ in evaluations]
    assert sorted(set(steps)) == steps
    *whole, (end, seconds) = evaluations
    assert all(step % round_steps == 0 for step, _ in whole)
    assert end == last or seconds >= limit


@given(
    every=INTERVALS,
    first=st.integers(0, 99),
    train_s=st.floats(0, 1e12),
    speed=st.tuples(st.integers(0, 100), st.floats(0, 1e12)),
)
def test_the_estimate_of_an_end_lies_ahead_and_in_the_budget(every, first, train_s, speed):
    schedule = EvaluationSchedule(every=every, last=100)
    assert first < schedule.end(first, train_s, schedule.due_s(train_s), TrainingSpeed(*speed)) <= 100
