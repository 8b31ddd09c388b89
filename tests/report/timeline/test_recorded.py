"""Rounds as they were recorded."""

import itertools
from collections import Counter

import pytest
from timed_traces import Node, averaging, crossing, swapping, trace_of

from istbench.base.errors import UserError
from istbench.report.timeline.recorded import recorded_round
from istbench.report.timeline.timeline import KINDS


def test_waiting_is_idle_until_the_other_node_posts_and_communication_from_there():
    timeline = recorded_round(swapping(), 2)
    assert [timeline.spent(0, kind) for kind in KINDS] == pytest.approx([0.5, 0.5, 0.5])
    assert [timeline.spent(1, kind) for kind in KINDS] == pytest.approx([1.0, 0.5, 0.0])


def test_computing_without_a_core_is_told_from_computing():
    first, second = (a for a in recorded_round(swapping(), 2).activities if (a.node, a.kind) == (1, "compute"))
    assert (first.seconds, first.busy_s) == (pytest.approx(0.25), pytest.approx(0.25))
    assert (second.seconds, second.busy_s) == (pytest.approx(0.75), pytest.approx(0.25))


def test_both_ends_of_a_recorded_transfer_are_one_transfer():
    transfers = recorded_round(swapping(), 2).transfers
    assert sorted((t.source, t.target) for t in transfers) == [(0, 1), (1, 0)]
    for transfer in transfers:
        assert (transfer.operation, transfer.bytes) == ("send", 10_000_000)
        assert (transfer.start, transfer.end) == (pytest.approx(1.0), pytest.approx(1.5))


def test_waiting_inside_the_backward_pass_is_no_computing():
    timeline = recorded_round(averaging(), 2)
    # Node 0 posts its last bucket at 0.2 s, computes 0.05 s more, and waits for node 2, which posts at 0.6 s.
    assert [timeline.spent(0, kind) for kind in KINDS] == pytest.approx([0.25, 1.4, 0.35])
    assert timeline.spent(2, "idle") == 0
    assert Counter((t.source, t.target) for t in timeline.transfers) == {(n, None): 2 for n in range(3)}


def test_a_transfer_that_goes_on_in_the_next_round_is_in_both_cut_where_they_end():
    before, within = (sorted({(t.start, t.end) for t in recorded_round(crossing(), k).transfers}) for k in (1, 2))
    assert before == [(pytest.approx(0.8), pytest.approx(1.0))]
    assert within == [(0.0, pytest.approx(0.5)), (pytest.approx(0.8), pytest.approx(1.0))]


def test_a_round_ends_with_the_step_that_ends_it():
    node = Node()
    for _ in range(2):
        node.compute(1.0)
        node.builder.mark("round")
        node.compute(0.5)
        node.builder.mark("step")
    timeline = recorded_round(trace_of([node]), 2)
    assert [(a.start, a.end) for a in timeline.activities] == [(0, pytest.approx(1.5))]


def test_a_clock_that_was_set_back_leaves_no_overlap():
    trace = swapping()
    later = trace.nodes[0]["at"] > 1.6
    trace.nodes[0]["at"][later] -= 0.3
    own = [activity for activity in recorded_round(trace, 2).activities if activity.node == 0]
    assert all(a.end == pytest.approx(b.start) for a, b in itertools.pairwise(own))


def test_a_round_without_any_time_is_refused():
    trace = swapping()
    for events in trace.nodes:
        events["at"] = 0.0
    with pytest.raises(UserError, match="round 2 took no time, as recorded; choose another"):
        recorded_round(trace, 2)
