"""Reduce-scatter by direct messages: n - 1 turns with an n-th of the tensor each, one after the other."""

import numpy as np
import pytest
from traces import BANDWIDTH, LATENCY, OVERHEAD, SIZE, blocking, cluster, exactly, same

from istbench.cluster.simulator import replay


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_direct_reduce_scatter(nodes):
    result = replay(same(nodes, blocking("reduce_scatter", SIZE)), cluster())
    seconds = (nodes - 1) * (SIZE / nodes / BANDWIDTH + LATENCY + OVERHEAD)
    assert result.finish_s[:, 0] == exactly(np.full(nodes, seconds))
    assert result.bytes_sent == exactly(np.full(nodes, (nodes - 1) * SIZE / nodes))
    assert result.messages == nodes * (nodes - 1)


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_reduce_scatter_and_an_all_gather_take_as_long_as_an_all_reduce(nodes):
    """Of the reduce-scatter's parts, by NCCL's rings: turns have no other difference."""
    both = [*blocking("reduce_scatter", SIZE), ("post", "all_gather", SIZE // nodes), ("wait", 1)]
    one = replay(same(nodes, blocking("all_reduce", SIZE)), cluster(backend="nccl"))
    assert replay(same(nodes, both), cluster()).finish_s == exactly(one.finish_s)


def test_a_trace_that_was_replayed_near_is_replayed_far_as_a_new_one():
    near, far = (cluster(latency_s=seconds, backend="gloo", in_turns=True) for seconds in (1e-3, 1e-2))
    program = [*blocking("reduce_scatter", SIZE), ("post", "all_gather", SIZE // 4), ("wait", 1)]
    known = same(4, program)
    replay(known, near)
    assert replay(known, far).seconds == replay(same(4, program), far).seconds
