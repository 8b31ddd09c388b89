"""All-gather by direct messages: n - 1 turns, one after the other."""

import dataclasses

import numpy as np
import pytest
from traces import HOP, SIZE, blocking, cluster, exactly, same, trace

from istbench.cluster import collectives
from istbench.cluster.collectives import COLLECTIVES
from istbench.cluster.simulator import replay
from istbench.cluster.trace import KINDS


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_direct_all_gather(nodes):
    result = replay(same(nodes, blocking("all_gather", SIZE)), cluster())
    assert result.finish_s[:, 0] == exactly(np.full(nodes, (nodes - 1) * HOP))
    assert result.seconds == exactly((nodes - 1) * HOP)
    assert result.messages == nodes * (nodes - 1)


def test_in_every_turn_a_node_receives_one_message():
    result = replay(same(4, blocking("all_gather", SIZE)), cluster(), spans=True)
    messages = [(span.start, span.node, span.peer) for span in result.spans if span.activity == "message"]
    turns = [{(node, peer) for start, node, peer in messages if start == exactly(turn * HOP)} for turn in range(3)]
    assert turns == [{(rank, (rank + distance) % 4) for rank in range(4)} for distance in (1, 2, 3)]


def test_of_unequal_parts_each_node_sends_its_own():
    result = replay(trace(*[blocking("all_gather", size) for size in (10_000, 20_000, 60_000)]), cluster())
    assert result.bytes_sent.tolist() == [20_000.0, 40_000.0, 120_000.0]
    assert result.bytes_received.tolist() == [80_000.0, 70_000.0, 30_000.0]


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_equal_nodes_take_as_long_on_a_ring(nodes, name, monkeypatch):
    directly = replay(same(nodes, blocking(name, SIZE)), cluster())
    code = KINDS.index(name)
    ring = dataclasses.replace(COLLECTIVES[code], schedule=getattr(collectives, f"_ring_{name}"))
    monkeypatch.setitem(COLLECTIVES, code, ring)
    on_ring = replay(same(nodes, blocking(name, SIZE)), cluster())
    assert directly.finish_s == exactly(on_ring.finish_s)
    assert directly.bytes_sent == exactly(on_ring.bytes_sent)
