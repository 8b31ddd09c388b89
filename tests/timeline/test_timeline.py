"""Timelines of traces made by hand, recorded and replayed, and their table."""

import dataclasses
import itertools
from collections import Counter

import pytest
from timed_traces import TRACES, Node, averaging, crossing, swapping, trace_of

from istbench.cluster.profile import load_profile
from istbench.errors import UserError
from istbench.timeline.recorded import recorded_round
from istbench.timeline.simulated import simulated_round
from istbench.timeline.table import timeline_table
from istbench.timeline.timeline import KINDS, typical_round

OFFICE = load_profile("office-1gbit")


def on_office(trace, number):
    return simulated_round(trace, OFFICE, number)


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


def test_a_trace_without_rounds_has_one_a_step():
    node = Node()
    for seconds in (1.0, 2.0, 3.0):
        node.compute(seconds)
        node.step()
    assert recorded_round(trace_of([node]), 2).seconds == pytest.approx(2.0)
    assert on_office(trace_of([node], gflops=OFFICE.gflops), 2).seconds == pytest.approx(2.0)


def test_a_clock_that_was_set_back_leaves_no_overlap():
    trace = swapping()
    later = trace.nodes[0]["at"] > 1.6
    trace.nodes[0]["at"][later] -= 0.3
    own = [activity for activity in recorded_round(trace, 2).activities if activity.node == 0]
    assert all(a.end == pytest.approx(b.start) for a, b in itertools.pairwise(own))


def test_a_replayed_round_takes_what_the_cluster_needs():
    timeline = on_office(swapping(), 2)
    scale = 100.0 / OFFICE.gflops
    assert timeline.spent(0, "compute") == pytest.approx(0.5 * scale)
    assert timeline.spent(1, "compute") == pytest.approx(0.5 * scale)
    wire = 10_000_000 * 8 / OFFICE.bandwidth_out + OFFICE.latency_s + OFFICE.overhead_s
    assert timeline.spent(0, "communication") == pytest.approx(wire, rel=1e-6)
    assert sorted((t.source, t.target) for t in timeline.transfers) == [(0, 1), (1, 0)]


def test_a_timeline_says_of_what_cluster_and_links():
    assert on_office(swapping(), 2).where == "replayed on office-1gbit at 950 Mbit/s"
    assert simulated_round(swapping(), OFFICE.with_bandwidth(1e8 / 3), 2).where.endswith("at 33.33 Mbit/s")
    uneven = dataclasses.replace(OFFICE, bandwidth_out=2e7, bandwidth_in=1e8)
    assert simulated_round(swapping(), uneven, 2).where.endswith("at 20 Mbit/s out, 100 Mbit/s in")


def test_a_replayed_all_reduce_is_the_messages_of_its_ring():
    transfers = on_office(averaging(buckets=1), 2).transfers
    # What is on its way when the round begins is of the one before.
    own = [transfer for transfer in transfers if transfer.start > 0]
    assert Counter((t.source, t.target) for t in own) == {(n, (n + 1) % 3): 4 for n in range(3)}
    assert sum(t.bytes for t in own if t.source == 0) == pytest.approx(10_000_000 * 4 / 3)
    assert {t.operation for t in own} == {"all_reduce"}


def test_what_early_nodes_send_in_their_next_round_is_there_until_the_last_node_ends():
    nodes = [Node(), Node(), Node()]
    for _ in range(3):
        for rank, node in enumerate(nodes):
            if rank < 2:
                node.compute(0.01)
                node.wait(node.now, *(node.post(kind, 1000, (1 - rank,)) for kind in ("send", "receive")))
            node.wait(node.now, node.post("all_reduce", 1000))
            node.compute(0.5 if rank == 2 else 0.0)
            node.step(ends_round=True)
    timeline = on_office(trace_of(nodes), 3)
    early = [t for t in timeline.transfers if t.operation == "send" and t.start > timeline.limits[0][1]]
    assert {(t.source, t.target) for t in early} == {(0, 1), (1, 0)}


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


def test_a_round_without_any_time_is_refused():
    trace = swapping()
    for events in trace.nodes:
        events["at"] = 0.0
    with pytest.raises(UserError, match="round 2 took no time, as recorded; choose another"):
        recorded_round(trace, 2)


def test_the_table_says_where_the_seconds_went():
    table = timeline_table(recorded_round(swapping(), 2), "toy by ist, 2 nodes")
    assert table.title == "toy by ist, 2 nodes, round 2, as recorded"
    values = [[cell.value for cell in row] for row in table.rows]
    assert values == [
        [0, pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5), pytest.approx(1.5)],
        [1, pytest.approx(1.0), pytest.approx(0.5), 0, pytest.approx(1.5)],
    ]
    assert "In 33% of the compute seconds" in table.footer[0]
    assert timeline_table(on_office(swapping(), 2), "toy").footer == ()
