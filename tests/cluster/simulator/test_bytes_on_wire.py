"""Bytes of a collective as runs and plans count them are those that the simulation sends and receives."""

import numpy as np
import pytest
from traces import SIZE, blocking, cluster, exactly, same

from istbench.cluster.collectives import COLLECTIVES, bytes_on_wire
from istbench.cluster.simulator import replay


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("collective", COLLECTIVES.values(), ids=lambda collective: collective.name)
def test_counted_bytes_are_simulated_bytes(collective, nodes, backend):
    root = nodes // 2
    size = SIZE // nodes * nodes
    program = blocking(collective.name, size, (root,) if collective.rooted else ())
    result = replay(same(nodes, program), cluster(backend=backend))
    counted = [bytes_on_wire(collective.name, size, nodes, (rank - root) % nodes, backend) for rank in range(nodes)]
    sent, received = np.array(counted).T
    assert result.bytes_sent == exactly(sent.astype(float))
    assert result.bytes_received == exactly(received.astype(float))


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 64])
def test_bytes_are_the_textbook_cost_rounded_down(nodes):
    others = nodes - 1
    assert bytes_on_wire("all_reduce", 1001, nodes) == (2 * 1001 * others // nodes,) * 2
    assert bytes_on_wire("all_gather", 1001, nodes) == (1001 * others,) * 2
    assert bytes_on_wire("reduce_scatter", 1001, nodes) == (1001 * others // nodes,) * 2
    assert bytes_on_wire("barrier", 1001, nodes) == (0, 0)
    assert bytes_on_wire("broadcast", 1001, nodes) == (1001 * others.bit_length(), 0)
    assert sum(bytes_on_wire("broadcast", 1001, nodes, place)[0] for place in range(nodes)) == 1001 * others


@pytest.mark.parametrize("nodes", [2, 3, 7, 64])
def test_only_a_broadcast_sends_other_bytes_with_nccl(nodes):
    for name in ("all_reduce", "all_gather", "reduce_scatter", "barrier"):
        assert bytes_on_wire(name, 1001, nodes, 0, "nccl") == bytes_on_wire(name, 1001, nodes)
    each = [bytes_on_wire("broadcast", 1001, nodes, place, "nccl") for place in range(nodes)]
    assert each == [(1001, 0), *[(1001, 1001)] * (nodes - 2), (0, 1001)]


def test_an_unknown_collective_is_refused():
    with pytest.raises(ValueError, match="no collective 'all_to_all'; add it to istbench/cluster/collectives.py"):
        bytes_on_wire("all_to_all", 8, 2)
