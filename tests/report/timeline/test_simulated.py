"""Rounds as they would be on a cluster."""

import dataclasses
from collections import Counter

import pytest
from timed_traces import OFFICE, Node, averaging, on_office, swapping, trace_of

from istbench.report.timeline.simulated import simulated_round


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
