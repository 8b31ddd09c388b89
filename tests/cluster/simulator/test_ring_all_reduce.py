"""All-reduce on a ring: 2 (n - 1) messages of an n-th each, one after the other."""

import numpy as np
import pytest
from traces import BANDWIDTH, LATENCY, OVERHEAD, SIZE, blocking, cluster, exactly, same, second_segment

from istbench.cluster.simulator import replay


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8])
def test_ring_all_reduce(nodes):
    result = replay(same(nodes, blocking("all_reduce", SIZE)), cluster())
    seconds = 2 * (nodes - 1) * (SIZE / nodes / BANDWIDTH + LATENCY + OVERHEAD + second_segment(nodes))
    assert result.finish_s[:, 0] == exactly(np.full(nodes, seconds))
    assert result.seconds == exactly(seconds)
    assert result.bytes_sent == exactly(np.full(nodes, 2 * (nodes - 1) * SIZE / nodes))
    assert result.bytes_received == exactly(result.bytes_sent)
    assert result.messages == 2 * nodes * (nodes - 1)


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("burst", [0, 200_000])
def test_the_segments_of_gloo_wait_for_each_other_and_those_of_nccl_do_not(nodes, burst):
    """Two are under way at once, so each further one waits for a latency, in which an idle link saves a burst."""
    size, far = 40 << 20, {"bandwidth_out": 1e9, "bandwidth_in": 1e9, "latency_s": 0.02, "burst_bytes": burst}
    work = same(nodes, blocking("all_reduce", size))
    gloo, nccl = (replay(work, cluster(backend=backend, **far)).seconds for backend in ("gloo", "nccl"))
    further = (40 // nodes) - 1
    own = (size / nodes - burst) / further
    saved = min(own, burst) + (0.3 * own if nodes > 2 else 0.0)
    waits = 2 * (nodes - 1) * further * (0.02 - saved / 125e6)
    assert gloo - nccl == exactly(waits)


def test_gloo_in_a_lab_with_late_packets():
    """Seconds measured in the lab at 1 Gbit/s, of 100 MB between two nodes and 25 MB between four."""
    link = {"bandwidth_out": 0.956e9, "bandwidth_in": 0.956e9, "burst_bytes": 245_000, "overhead_s": 0.0}
    for nodes, size, latency, measured in (
        (2, 100_000_000, 0.010, 1.608), (2, 25_000_000, 0.025, 0.762), (4, 25_000_000, 0.010, 0.507),
        (4, 25_000_000, 0.025, 1.037), (4, 100_000_000, 0.010, 1.977), (3, 25_000_000, 0.010, 0.460),
    ):  # fmt: skip
        found = replay(same(nodes, blocking("all_reduce", size)), cluster(latency_s=latency, **link)).seconds
        assert found == pytest.approx(measured, rel=0.03)
