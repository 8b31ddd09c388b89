"""What holds of every timeline, recorded or simulated."""

import itertools

import pytest
from timed_traces import OFFICE, TRACES, Node, on_office, swapping, trace_of

from istbench.base.errors import UserError
from istbench.report.timeline.recorded import recorded_round
from istbench.report.timeline.timeline import KINDS, typical_round


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("show", [recorded_round, on_office])
def test_the_activities_of_a_node_fill_its_round(show, number, name):
    timeline = show(TRACES[name], number)
    assert min(begin for begin, _ in timeline.limits) == 0
    for node, (begin, end) in enumerate(timeline.limits):
        own = [activity for activity in timeline.activities if activity.node == node]
        assert own[0].start == pytest.approx(begin)
        assert own[-1].end == pytest.approx(end)
        assert all(a.end == pytest.approx(b.start, abs=1e-12) for a, b in itertools.pairwise(own))
        assert all(0 <= activity.busy_s <= activity.seconds + 1e-12 for activity in own)
        assert sum(timeline.spent(node, kind) for kind in KINDS) == pytest.approx(end - begin)
    for transfer in timeline.transfers:
        assert 0 <= transfer.start <= transfer.end <= timeline.seconds


def test_a_trace_without_rounds_has_one_a_step():
    node = Node()
    for seconds in (1.0, 2.0, 3.0):
        node.compute(seconds)
        node.step()
    assert recorded_round(trace_of([node]), 2).seconds == pytest.approx(2.0)
    assert on_office(trace_of([node], gflops=OFFICE.gflops), 2).seconds == pytest.approx(2.0)


def test_the_typical_round_has_no_evaluation_in_it():
    node = Node()
    for seconds in (9.0, 1.0, 7.0, 1.1, 1.2, 0.2):
        node.compute(seconds, cpu=0.1)
        node.step(ends_round=True)
    assert typical_round(trace_of([node])) == 4
    assert typical_round(swapping(rounds=1)) == 1


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("show", [recorded_round, on_office])
def test_a_round_that_was_not_recorded_is_refused(show, number):
    with pytest.raises(UserError, match=rf"round {number} was not recorded.*rounds 1 to 3.*--round"):
        show(swapping(), number)
