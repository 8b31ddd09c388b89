"""All-gather on a ring: n - 1 messages, one after the other."""

import numpy as np
import pytest
from traces import BANDWIDTH, HOP, LATENCY, OVERHEAD, SIZE, blocking, cluster, exactly, same, trace

from istbench.cluster.simulator import replay


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_ring_all_gather(nodes):
    result = replay(same(nodes, blocking("all_gather", SIZE)), cluster())
    assert result.finish_s[:, 0] == exactly(np.full(nodes, (nodes - 1) * HOP))
    assert result.seconds == exactly((nodes - 1) * HOP)
    assert result.messages == nodes * (nodes - 1)


def test_all_gather_of_unequal_parts_sends_each_part_round_the_ring():
    result = replay(trace(*[blocking("all_gather", size) for size in (10_000, 20_000, 60_000)]), cluster())
    assert result.bytes_sent.tolist() == [70_000.0, 30_000.0, 80_000.0]
    assert result.finish_s[1, 0] == exactly(2 * (OVERHEAD + LATENCY) + 120_000 / BANDWIDTH)
