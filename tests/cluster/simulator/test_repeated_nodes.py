"""Nodes that repeat others: simulated once, they give the figures of the simulation of all nodes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import BANDWIDTH, LATENCY, OVERHEAD, SIZE, blocking, cluster, exactly, same, second_segment, trace

from istbench.base.errors import UserError
from istbench.cluster.profile import Rack, SharedHost
from istbench.cluster.repeated_nodes import fold
from istbench.cluster.simulator import replay, run
from istbench.cluster.trace_builder import TraceBuilder, merge

COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "barrier"]


def turned_trace(random, period, nodes, operations=8, rounds=2):
    """A random trace whose nodes do what the node `period` ranks before them does, with peers further on.

    Every node posts a round's receives first, and waits for its operations in a random order after all posts.
    """
    plans = []
    for _ in range(rounds):
        shape = operations, period
        seconds = random.choice([0.0, 0.001, 0.02], shape) * random.uniform(0.5, 1, shape)
        kinds = random.choice([*COLLECTIVES, "send", "send", "work"], operations).tolist()
        sizes = (random.choice([0, 1, 1], operations) * random.integers(1, 30_000, operations)).tolist()
        distances = random.integers(1, nodes, operations).tolist() if nodes > 1 else [0] * operations
        orders = [random.permutation(2 * operations).tolist() for _ in range(period)]
        plans.append((seconds, kinds, sizes, distances, random.integers(3, size=operations).tolist(), orders))
    builders = []
    for rank in range(nodes):
        own, builder = rank % period, TraceBuilder(clock=lambda: 0.0)
        for seconds, kinds, sizes, distances, priorities, orders in plans:
            posted = [
                builder.post("receive", size, [(rank - distance) % nodes])
                for kind, size, distance in zip(kinds, sizes, distances, strict=True)
                if kind == "send" and distance
            ]
            for number, kind in enumerate(kinds):
                builder.compute(float(seconds[number, own]))
                size = sizes[number]
                if kind == "send" and distances[number]:
                    target = (rank + distances[number]) % nodes
                    posted.append(builder.post("send", size, [target], priorities[number]))
                elif kind in COLLECTIVES:
                    part = size + 100 * own if kind == "all_gather" else 0 if kind == "barrier" else size
                    posted.append(builder.post(kind, part))
            for place in orders[own]:
                if place < len(posted):
                    builder.wait(posted[place])
            builder.mark("step")
            builder.mark("round")
        builders.append(builder)
    return merge([builder.to_arrays() for builder in builders], gflops=100.0)


def check_figures(one, all_nodes):
    """Both replays have the same figures."""
    assert one.finish_s == pytest.approx(all_nodes.finish_s, rel=1e-3, abs=1e-12)
    assert one.seconds == pytest.approx(all_nodes.seconds, rel=1e-3)
    for name in ("compute_s", "communication_s", "idle_s"):
        difference = getattr(one, name) - getattr(all_nodes, name)
        assert np.all(np.abs(difference) <= 1e-3 * all_nodes.seconds)
    assert one.bytes_sent == exactly(all_nodes.bytes_sent)
    assert one.messages == all_nodes.messages


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), period=st.integers(1, 4), times=st.integers(2, 5))
def test_one_of_each_kind_gives_the_figures_of_all(seed, period, times):
    random = np.random.default_rng(seed)
    work = turned_trace(random, period, period * times)
    assert len(fold(work).nodes) <= period
    profile = cluster(
        full_duplex=bool(seed % 3),
        bandwidth_in=float(random.choice([4, 8, 16])) * BANDWIDTH,
        latency_s=float(random.uniform(0, LATENCY)),
        overhead_s=float(random.uniform(0, OVERHEAD)),
        cores=4.0 if seed % 2 else None,
        cpu_s_per_byte=2e-7 if seed % 2 else 0.0,
    )
    one, all_nodes = (
        replay(work, profile, rounds=5, window=1 + seed % 3, streams=1 + seed % 2, folded=folded)
        for folded in (True, False)
    )
    check_figures(one, all_nodes)
    assert one.bytes_received == exactly(all_nodes.bytes_received)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), period=st.sampled_from([1, 2]), size=st.integers(1, 4), hosts=st.integers(1, 3)
)
def test_one_host_gives_the_figures_of_all_equal_hosts(seed, period, size, hosts):
    random = np.random.default_rng(seed)
    nodes = np.lcm(period, size) * hosts
    work = turned_trace(random, period, int(nodes))
    profile = cluster(
        full_duplex=bool(seed % 3),
        host=SharedHost(nodes=size, bandwidth=float(random.choice([1, 2, 4])) * BANDWIDTH, latency_s=LATENCY / 7),
        latency_s=float(random.uniform(0, LATENCY)),
        overhead_s=float(random.uniform(0, OVERHEAD)),
    )
    assert len(fold(fold(work), size).nodes) in {period * size, size, nodes}
    one, all_nodes = (
        replay(own, profile, rounds=5, window=1 + seed % 3, streams=1 + seed % 2, folded=folded)
        for own, folded in ((fold(work), True), (work, False))
    )
    check_figures(one, all_nodes)
    assert one.link_use == pytest.approx(all_nodes.link_use, rel=1e-3)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 2), hosts=st.integers(1, 3), racks=st.integers(1, 3))
def test_one_rack_gives_the_figures_of_all_equal_racks(seed, size, hosts, racks):
    random = np.random.default_rng(seed)
    profile = cluster(
        full_duplex=bool(seed % 3),
        host=SharedHost(nodes=size, bandwidth=2 * BANDWIDTH, latency_s=LATENCY / 7) if size > 1 else None,
        rack=Rack(hosts=hosts, uplink=float(random.choice([0.4, 0.7, 1.5])) * BANDWIDTH),
        latency_s=float(random.uniform(0, LATENCY)),
    )
    work = turned_trace(random, 1, size * hosts * racks)
    one, all_nodes = (replay(work, profile, rounds=5, streams=1 + seed % 2, folded=own) for own in (True, False))
    check_figures(one, all_nodes)
    assert one.link_use == pytest.approx(all_nodes.link_use, rel=1e-3)


def test_saved_bursts_of_a_link_that_nodes_share_repeat_with_them():
    work = turned_trace(np.random.default_rng(3), 1, 6)
    profile = cluster(host=SharedHost(nodes=2, bandwidth=BANDWIDTH, latency_s=0.0), burst_bytes=1e4)
    one, all_nodes = (replay(work, profile, rounds=3, folded=folded) for folded in (True, False))
    assert one.finish_s == exactly(all_nodes.finish_s)


def test_thousands_of_equal_nodes_are_one():
    work = same(1024, [("compute", 0.1), *blocking("all_reduce", SIZE)])
    assert len(fold(work).nodes) == 1
    found = replay(work, cluster(), rounds=2)
    hop = OVERHEAD + SIZE / 1024 / BANDWIDTH + LATENCY + second_segment(1024)
    assert found.finish_s == exactly(np.outer(np.ones(1024), [0.1 + 2046 * hop, 0.2 + 4092 * hop]))
    assert found.messages == 2 * 1024 * 2046


def test_thousands_of_nodes_in_racks_are_one_rack():
    work = same(10_000, [("compute", 0.1), *blocking("all_reduce", SIZE)])
    one = replay(work, cluster(rack=Rack(hosts=10, uplink=5 * BANDWIDTH)), rounds=1)
    assert np.array_equal(one.finish_s, np.tile(one.finish_s[:10], (1_000, 1)))
    assert one.messages == 10_000 * 2 * 9_999


def test_nodes_that_would_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr(run, "available_bytes", lambda: 2 * 10**9)
    profile = cluster(rack=Rack(hosts=7, uplink=BANDWIDTH))  # 7 does not divide the nodes
    with pytest.raises(UserError, match="replaying 2000 nodes, 2000 of them unlike .* about 3 GB .* 2 GB are free"):
        replay(same(2000, [("compute", 0.1)]), profile, rounds=1)


def test_nodes_that_differ_are_kept():
    programs = [[("compute", 0.1 * rank), *blocking("all_reduce", SIZE)] for rank in range(4)]
    work = trace(*programs)
    assert fold(work) is work
    assert len(fold(trace(*programs[:2], *programs[:2])).nodes) == 2
    to_the_first = [[("post", "receive", SIZE, (1,)), ("wait", 0)], [("post", "send", SIZE, (0,)), ("wait", 0)]]
    idle = [("compute", 0.0)]
    assert len(fold(trace(*to_the_first, idle, idle)).nodes) == 4


def test_a_broadcast_has_one_root():
    work = same(4, blocking("broadcast", SIZE, (0,)))
    assert fold(work) is work


@pytest.mark.parametrize("seed", range(4))
def test_a_trace_of_the_first_nodes_alone_is_replayed_for_all_nodes_in_racks(seed):
    whole = turned_trace(np.random.default_rng(seed), 2, 8)
    racks = cluster(rack=Rack(hosts=4, uplink=8 * BANDWIDTH), speeds=(1.0, 0.5))
    found, expected = (replay(own, racks, compute_scale=1.0) for own in (fold(whole), whole))
    assert len(fold(whole).nodes) == 2
    assert np.array_equal(found.finish_s, expected.finish_s)
    assert np.array_equal(found.bytes_sent, expected.bytes_sent)
