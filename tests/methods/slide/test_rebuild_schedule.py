"""When tables are built anew: at a fixed interval, or ever more rarely."""

import itertools
import math

import pytest

from istbench.methods.slide.index import RebuildSchedule


def steps_due(schedule, until):
    return [step for step in range(1, until + 1) if schedule.due(step)]


def test_a_fixed_interval():
    assert steps_due(RebuildSchedule(first=50, growth=0), 260) == [50, 100, 150, 200, 250]
    assert steps_due(RebuildSchedule(first=1, growth=0), 4) == [1, 2, 3, 4]


@pytest.mark.parametrize(("first", "growth"), [(50, 0.1), (3, 0.5), (1, 2.0), (7, 1e-6), (1, 0.01)])
def test_intervals_grow_by_a_factor(first, growth):
    ends = itertools.accumulate(first * math.exp(growth * place) for place in range(10_000))
    wanted = [math.ceil(end - 1e-9) for end in itertools.takewhile(lambda end: end <= 700, ends)]
    schedule = RebuildSchedule(first=first, growth=growth)
    assert steps_due(schedule, 700) == sorted(set(wanted))
    assert [schedule.rebuilds(step) for step in range(701)] == [
        sum(end <= step for end in wanted) for step in range(701)
    ]


@pytest.mark.parametrize("wrong", [{"first": 0}, {"growth": -0.1}, {"growth": math.nan}, {"growth": math.inf}])
def test_no_such_schedule(wrong):
    with pytest.raises(ValueError, match="a schedule cannot start"):
        RebuildSchedule(**wrong)
