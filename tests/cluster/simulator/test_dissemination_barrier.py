"""Barrier by dissemination: as many empty messages one after the other as n has bits."""

import numpy as np
import pytest
from traces import BANDWIDTH, LATENCY, OVERHEAD, blocking, cluster, exactly, same, trace

from istbench.cluster.simulator import replay


@pytest.mark.parametrize(("nodes", "steps"), [(1, 0), (2, 1), (5, 3), (8, 3)])
def test_barrier_is_by_dissemination(nodes, steps):
    result = replay(same(nodes, blocking("barrier")), cluster())
    assert result.finish_s[:, 0] == exactly(np.full(nodes, steps * (OVERHEAD + LATENCY)))
    assert result.seconds == exactly(steps * (LATENCY + OVERHEAD))
    assert result.messages == nodes * steps


def test_a_barrier_carries_nothing_whatever_was_posted():
    assert replay(same(4, blocking("barrier", 1000)), cluster()).bytes_sent.sum() == 0


def test_a_barrier_ends_when_the_last_has_come():
    late = [("compute", 1.0), *blocking("barrier")]
    assert replay(trace(blocking("barrier"), late, blocking("barrier")), cluster()).finish_s.min() > 1.0


@pytest.mark.parametrize("late", range(5))
def test_what_overtakes_does_not_stand_in_for_what_is_late(late):
    """The late node's first message stands behind a large one, so its receiver hears of later steps before."""
    large, behind = int(BANDWIDTH), (late + 1) % 5
    programs = [blocking("barrier") for _ in range(5)]
    programs[late] = [("post", "send", large, (behind,)), ("post", "barrier", 0), ("wait", 1)]
    programs[behind] = [("post", "receive", large, (late,)), ("post", "barrier", 0), ("wait", 1)]
    finish = replay(trace(*programs), cluster()).finish_s[:, 0]
    for distance in range(5):
        hops = distance.bit_count()
        assert finish[(late + distance) % 5] >= 1 + hops * (OVERHEAD + LATENCY)
