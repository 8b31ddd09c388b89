"""NCCL's broadcast on a ring, in chunks: as long as the tensor on one link, whatever the number of nodes."""

import pytest
from traces import BANDWIDTH, FLOW, HOP, SIZE, blocking, cluster, exactly, same, trace

from istbench.cluster.collectives import COLLECTIVES
from istbench.cluster.simulator import replay
from istbench.cluster.trace import KINDS

LARGE = 2**30
NCCL = {"backend": "nccl", "latency_s": 0.0, "overhead_s": 0.0}


@pytest.mark.parametrize(("nodes", "root"), [(1, 0), (2, 1), (5, 3), (8, 0)])
def test_a_small_tensor_goes_from_node_to_node_at_once(nodes, root):
    result = replay(same(nodes, blocking("broadcast", SIZE, (root,))), cluster(backend="nccl"))
    assert result.seconds == exactly((nodes - 1) * HOP)
    assert result.messages == nodes - 1
    last = (root - 1) % nodes
    assert result.bytes_sent.tolist() == [0.0 if rank == last else SIZE for rank in range(nodes)]


@pytest.mark.parametrize("nodes", [2, 3, 8, 24])
def test_a_large_tensor_takes_as_long_as_on_one_link(nodes):
    result = replay(same(nodes, blocking("broadcast", LARGE, (1,))), cluster(**NCCL))
    assert LARGE / BANDWIDTH <= result.seconds <= 1.04 * LARGE / BANDWIDTH


def test_the_number_of_chunks_follows_from_the_size_and_the_hops():
    broadcast = COLLECTIVES[KINDS.index("broadcast")]
    assert [broadcast.chunks(size, 8, "nccl") for size in (0, 4, 2**20, 2**20 + 1, 2**40)] == [1, 1, 1, 2, 192]
    assert broadcast.chunks(2**40, 2, "nccl") == broadcast.chunks(2**40, 8, "gloo") == 1


def test_thousands_of_nodes_share_the_rows_of_a_schedule():
    broadcast = COLLECTIVES[KINDS.index("broadcast")]
    rows = broadcast.between(4096, "nccl", broadcast.chunks(2**33, 4096, "nccl"))
    assert (len(rows), len({id(row) for row in rows}), sum(map(len, rows))) == (4096, 3, 8192 * 4095)


def test_one_collective_at_a_time():
    """NCCL runs the collectives of a group one after another; of gloo's, two run at once."""
    program = [("post", "broadcast", SIZE, (0,)), ("post", "broadcast", SIZE, (1,)), ("wait", 0), ("wait", 1)]
    both = trace(program, program)
    seconds = [replay(both, cluster(**{**NCCL, "backend": backend})).seconds for backend in ("nccl", "gloo")]
    assert seconds == [exactly(2 * FLOW), exactly(FLOW)]
