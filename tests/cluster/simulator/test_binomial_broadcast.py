"""Broadcast down a binomial tree: as deep as n has powers of two."""

import pytest
from traces import FLOW, HOP, OVERHEAD, SIZE, blocking, cluster, exactly, same

from istbench.cluster.simulator import replay


@pytest.mark.parametrize(("nodes", "root"), [(1, 0), (2, 0), (2, 1), (4, 3), (8, 2)])
def test_broadcast_is_a_binomial_tree(nodes, root):
    result = replay(same(nodes, blocking("broadcast", SIZE, (root,))), cluster())
    depth = nodes.bit_length() - 1
    assert result.seconds == exactly(depth * HOP)
    assert result.finish_s[root, 0] == exactly(depth * (OVERHEAD + FLOW))
    assert result.bytes_sent.sum() == (nodes - 1) * SIZE
    assert result.messages == nodes - 1


def test_nodes_that_are_no_power_of_two_leave_the_tree_open():
    result = replay(same(6, blocking("broadcast", SIZE, (1,))), cluster())
    assert (result.bytes_sent / SIZE).tolist() == [0.0, 3.0, 2.0, 0.0, 0.0, 0.0]
    assert result.bytes_received.tolist() == [SIZE, 0.0, SIZE, SIZE, SIZE, SIZE]
