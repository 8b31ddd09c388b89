"""Bytes of a collective as runs and plans count them are those that the simulation sends and receives."""

import numpy as np
import pytest
from traces import SIZE, blocking, cluster, exactly, same

from istbench.cluster.on_wire import bytes_on_wire
from istbench.cluster.simulator import replay


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_counted_bytes_are_simulated_bytes(kind, nodes):
    root = nodes // 2
    size = SIZE // nodes * nodes
    result = replay(same(nodes, blocking(kind, size, (root,) if kind == "broadcast" else ())), cluster())
    counted = [bytes_on_wire(kind, size, nodes, (rank - root) % nodes) for rank in range(nodes)]
    sent, received = np.array(counted).T
    assert result.bytes_sent == exactly(sent.astype(float))
    assert result.bytes_received == exactly(received.astype(float))
