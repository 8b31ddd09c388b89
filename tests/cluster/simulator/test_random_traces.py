"""Whatever is replayed: no byte or second is lost, no bound is beaten, and the figures are always the same."""

import hashlib

import numpy as np
import pytest
from traces import BANDWIDTH, LATENCY, OVERHEAD, cluster, exactly, random_trace

from istbench.cluster.simulator import replay
from istbench.cluster.trace import KINDS, POST, RECEIVE, SEND


def digest(result):
    arrays = (result.finish_s, result.compute_s, result.communication_s, result.idle_s, result.bytes_sent)
    content = b"".join(array.tobytes() for array in arrays) + repr(result.seconds).encode()
    return hashlib.sha256(content).hexdigest()


def random_replay(seed, rounds=8):
    random = np.random.default_rng(seed)
    nodes = int(random.integers(1, 7))
    work = random_trace(random, nodes, operations=12, rounds=3)
    profile = cluster(
        full_duplex=bool(seed % 3),
        bandwidth_in=float(random.choice([4, 8, 16])) * BANDWIDTH,
        latency_s=float(random.choice([0, LATENCY])),
        overhead_s=float(random.choice([0, OVERHEAD])),
    )
    return work, profile, replay(work, profile, rounds=rounds, window=1 + seed % 3, streams=1 + seed % 2)


def payload(work):
    """Bytes that all nodes together put on the network in one sample, by the textbook cost of each operation."""
    n, total = work.world_size, 0.0
    factor = {
        KINDS.index("all_reduce"): 2 * (n - 1) / n,
        KINDS.index("all_gather"): n - 1,
        KINDS.index("reduce_scatter"): (n - 1) / n,
        KINDS.index("broadcast"): (n - 1) / n,
        SEND: 1,
        RECEIVE: 0,
        KINDS.index("barrier"): 0,
    }
    for events in work.nodes:
        posts = events[events["code"] == POST]
        total += sum(factor[kind] * size for kind, size in zip(posts["kind"], posts["bytes"], strict=True))
    return total


@pytest.mark.parametrize("seed", range(20))
def test_random_traces_conserve_bytes_and_time_and_beat_no_bound(seed):
    work, profile, result = random_replay(seed)
    whole = replay(work, profile, rounds=9)
    assert whole.bytes_sent.sum() == exactly(3 * payload(work))
    assert whole.bytes_received.sum() == exactly(3 * payload(work))
    assert whole.compute_s[:, -1] == exactly(np.array([3 * events["seconds"].sum() for events in work.nodes]))
    spent = result.compute_s + result.communication_s + result.idle_s
    assert spent == pytest.approx(result.finish_s, rel=1e-9)
    assert np.all(np.diff(result.finish_s, axis=1) >= 0)
    out, into = result.bytes_sent * 8 / profile.bandwidth_out, result.bytes_received * 8 / profile.bandwidth_in
    busy = np.maximum(out, into) if profile.full_duplex else out + result.bytes_received * 8 / profile.bandwidth_out
    assert result.seconds >= busy.max() * (1 - 1e-9)
    assert result.seconds >= result.compute_s[:, -1].max()
    assert digest(random_replay(seed)[2]) == digest(result)
