"""Any schedule of messages is a collective."""

import dataclasses

import numpy as np
import pytest
from traces import BANDWIDTH, LATENCY, OVERHEAD, SIZE, blocking, cluster, exactly, same

from istbench.cluster.collectives import COLLECTIVES, CollectiveMessage
from istbench.cluster.simulator import replay
from istbench.cluster.trace import KINDS

BARRIER = KINDS.index("barrier")


def ring_reduce_scatter(nodes):
    return [[CollectiveMessage(to=1, after=step, parts=nodes) for step in range(nodes - 1)]]


def all_to_all(nodes):
    return [[CollectiveMessage(to=further, after=0, parts=nodes) for further in range(1, nodes)]]


def gather_to_root(nodes):
    return [[], *[[CollectiveMessage(to=nodes - place, after=0)] for place in range(1, nodes)]]


def barrier_of(schedule):
    return dataclasses.replace(COLLECTIVES[BARRIER], schedule=schedule)


def test_saved_traces_keep_their_codes():
    assert " ".join(KINDS) == "all_reduce send receive all_gather broadcast barrier work reduce_scatter"


def test_one_line_makes_a_collective(monkeypatch):
    monkeypatch.setitem(COLLECTIVES, BARRIER, barrier_of(ring_reduce_scatter))
    result = replay(same(4, blocking("barrier", SIZE)), cluster(), spans=True)
    assert result.finish_s[:, 0] == exactly(np.full(4, 3 * (SIZE / 4 / BANDWIDTH + LATENCY + OVERHEAD)))
    assert result.bytes_received == exactly(np.full(4, 0.75 * SIZE))
    assert sum(span.activity == "message" for span in result.spans) == result.messages == 12


def test_any_number_of_messages_may_be_under_way(monkeypatch):
    monkeypatch.setitem(COLLECTIVES, BARRIER, barrier_of(all_to_all))
    result = replay(same(16, blocking("barrier", SIZE)), cluster(latency_s=1e3, overhead_s=0.0))
    assert result.finish_s[:, 0] == exactly(np.full(16, 15 / 16 * SIZE / BANDWIDTH + 1e3))
    assert result.bytes_received == exactly(np.full(16, 15 / 16 * SIZE))


def test_places_are_counted_from_the_root(monkeypatch):
    monkeypatch.setitem(COLLECTIVES, BARRIER, barrier_of(gather_to_root))
    result = replay(same(3, blocking("barrier", SIZE)), cluster())
    assert result.bytes_sent.tolist() == [0.0, SIZE, SIZE]
    assert result.bytes_received.tolist() == [2 * SIZE, 0.0, 0.0]


@pytest.mark.parametrize("kind", sorted(COLLECTIVES))
@pytest.mark.parametrize("nodes", [1, 2, 3, 6, 13, 32])
def test_schedules_end_on_every_node(kind, nodes):
    peers = (nodes // 2,) if COLLECTIVES[kind].rooted else ()
    result = replay(same(nodes, blocking(KINDS[kind], SIZE, peers)), cluster(), spans=True)
    rows = COLLECTIVES[kind].schedule(nodes)
    assert result.messages == sum(map(len, rows)) * nodes // len(rows)
    assert sum(span.activity == "message" for span in result.spans) == result.messages
