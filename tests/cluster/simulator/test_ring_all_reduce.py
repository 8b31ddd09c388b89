"""All-reduce on a ring: 2 (n - 1) messages of an n-th each, one after the other."""

import numpy as np
import pytest
from traces import BANDWIDTH, LATENCY, OVERHEAD, SIZE, blocking, cluster, exactly, same

from istbench.cluster.simulator import replay


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8])
def test_ring_all_reduce(nodes):
    result = replay(same(nodes, blocking("all_reduce", SIZE)), cluster())
    seconds = 2 * (nodes - 1) * (SIZE / nodes / BANDWIDTH + LATENCY + OVERHEAD)
    assert result.finish_s[:, 0] == exactly(np.full(nodes, seconds))
    assert result.seconds == exactly(seconds)
    assert result.bytes_sent == exactly(np.full(nodes, 2 * (nodes - 1) * SIZE / nodes))
    assert result.bytes_received == exactly(result.bytes_sent)
    assert result.messages == 2 * nodes * (nodes - 1)
