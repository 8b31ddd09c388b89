"""When evaluations fall, after local steps and after train seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from istbench.base.options.interval import Interval
from istbench.node.trainer import due_step, segment_end

INTERVALS = st.one_of(
    st.integers(1, 100).map(lambda steps: Interval(steps=steps)),
    st.floats(1e-3, 1e9).map(lambda seconds: Interval(seconds=seconds)),
)


def test_steps_fall_on_multiples_also_after_a_resumption():
    every = Interval(steps=5)
    assert [segment_end(every, first, 12, 0.0, 0) for first in (0, 5, 7, 10)] == [5, 10, 10, 12]


def test_seconds_become_steps_by_the_rate_so_far():
    every = Interval(seconds=2.0)
    assert segment_end(every, 0, 1000, 0.0, 0) == 10
    assert segment_end(every, 10, 1000, 0.5, 10) == 10 + 40
    assert segment_end(every, 50, 1000, 2.5, 40) == 50 + 40
    assert segment_end(every, 50, 60, 2.5, 40) == 60


def test_a_first_rate_that_is_off_does_not_ruin_the_rest():
    assert segment_end(Interval(seconds=100.0), 10, 10**9, 1e-6, 10) == 10 + 100


def test_a_step_that_takes_longer_than_the_interval_is_evaluated_each_time():
    assert segment_end(Interval(seconds=0.1), 10, 100, 50.0, 1) == 11


@given(
    every=INTERVALS,
    first=st.integers(0, 99),
    train_s=st.floats(0, 1e12),
    before=st.integers(0, 100),
)
def test_a_segment_goes_on_and_ends_in_the_budget(every, first, train_s, before):
    assert first < segment_end(every, first, 100, train_s, before) <= 100


def test_a_resumed_run_goes_on_at_the_rate_of_its_first_part():
    assert segment_end(Interval(seconds=1.0), 500, 1000, 10.0, 0) == pytest.approx(550)


def test_an_evaluation_that_is_due_inside_a_round_waits_for_its_end():
    assert [segment_end(Interval(steps=5), first, 30, 0.0, 0, 4) for first in (0, 8, 12, 16)] == [8, 12, 16, 20]
    assert segment_end(Interval(steps=5), 28, 30, 0.0, 0, 4) == 30
    assert segment_end(Interval(steps=5), 0, 12, 0.0, 0, 100_000) == 12
    assert segment_end(Interval(seconds=2.0), 10, 1000, 0.5, 10, 20) == 60
    assert segment_end(Interval(seconds=0.1), 20, 1000, 50.0, 20, 20) == 40


@given(
    every=INTERVALS,
    round_steps=st.integers(1, 150),
    rounds=st.integers(0, 20),
    last=st.integers(1, 200),
    train_s=st.floats(0, 1e12),
    before=st.integers(0, 100),
)
def test_a_segment_ends_with_the_round_of_the_step_that_is_due(every, round_steps, rounds, last, train_s, before):
    first = min(rounds * round_steps, last - 1)
    due = due_step(every, first, last, train_s, before)
    end = segment_end(every, first, last, train_s, before, round_steps)
    assert due <= end < due + round_steps
    assert end == last or end % round_steps == 0
