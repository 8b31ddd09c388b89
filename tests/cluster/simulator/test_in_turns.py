"""All-reduces between distant nodes: a replay sends what istbench sends there, wherever a trace was recorded."""

import numpy as np
import pytest
import torch
from traces import blocking, cluster, exactly, random_trace, same

from istbench.cluster.in_turns import FAR_S, seen_on, takes_turns
from istbench.cluster.profile import TCP_WINDOW, SharedHost
from istbench.cluster.repeated_nodes import unfold
from istbench.cluster.simulator import replay
from istbench.cluster.trace import POST
from istbench.cluster.trace_builder import merge
from istbench.fabric.all_reduce import finish, mean_in_turns
from istbench.methods.planned_node import PlannedNode, StepCost
from istbench.methods.subnet_footprint import post_exchange

LINK = {"bandwidth_out": 1e9, "bandwidth_in": 1e9, "overhead_s": 0.0, "in_turns": True}
FAR = LINK | {"latency_s": 0.01}
COST = StepCost(peak=None, batch=0, flops=None, uses=(), ready=())
STEPS = 3


class NodeOnHosts(PlannedNode):
    """A planned node that averages by hosts."""

    host_nodes = 1


def planned(nodes, sizes, host_nodes, *, exchanges):
    """Steps that compute before each of the means of `sizes` bytes, as `ddp` does, and then wait for all of them.

    exchanges: the messages that the fabric's own all-reduce posts, instead of one operation for each.
    """
    events = []
    for rank in range(nodes):
        node = NodeOnHosts(rank, nodes, COST, 0.0)
        node.host_nodes = host_nodes
        for step in range(STEPS):
            under_way = []
            for place, size in enumerate(sizes):
                node.builder.compute(0.01 * (1 + place) + 0.001 * ((rank + step) % 3))
                if exchanges:
                    under_way.append(mean_in_turns(node, torch.empty(size // 4, device="meta"), "mean"))
                    next(under_way[-1], None)
                else:
                    under_way.append(node.post("all_reduce", size))
            if exchanges:
                finish(*under_way)
            else:
                node.wait(under_way)
            node.builder.mark("step")
        events.append(node.builder.to_arrays())
    return merge(events, gflops=100.0, transport=exchanges)


def test_a_server_still_waits_for_pushed_gradients_between_distant_nodes():
    """Its update is work that waits for messages; only messages do not wait for those of the turn before."""
    events = []
    for rank in range(2):
        node = PlannedNode(rank, 2, COST, 0.0)
        for _ in range(STEPS):
            node.builder.compute(0.01)
            if rank == 0:
                pushed = node.post("receive", 1000, [1])
                update = node.post("work", 0, after=[pushed])
                sent = node.post("send", 1000, [1], after=[update])
            else:
                node.post("send", 1000, [0])
                sent = node.post("receive", 1000, [0])
            node.wait([sent])
            node.builder.mark("step")
        events.append(node.builder.to_arrays())
    trace = merge(events, gflops=100.0, transport=False)
    there_and_back = 2 * FAR["latency_s"]
    step_s = replay(trace, cluster(**FAR)).seconds / STEPS
    assert step_s > 0.01 + 0.9 * there_and_back


CASES = {
    "small": (4, (4000,), 1),
    "two nodes": (2, (4000, 40_000_000), 1),
    "one slice": (4, (300_000,), 1),
    "buckets": (4, (1_048_576, 26_214_400, 7_000_004), 1),
    "three nodes": (3, (10_000_000, 4, 8_000_000), 1),
    "hosts": (4, (4000, 26_214_400), 2),
    "hosts, four of them": (8, (26_214_400, 300_000), 2),
    "large hosts": (8, (9_000_000,), 4),
}


def apart(host_nodes=1, **changes):
    """A cluster of distant hosts."""
    host = {"host": SharedHost(nodes=host_nodes, bandwidth=1e11, latency_s=0.0)} if host_nodes > 1 else {}
    return cluster(**(FAR | host | changes))


def posts(trace):
    """Of each node, the kinds, bytes and peers of all operations."""
    own = [events[events["code"] == POST] for events in unfold(trace).nodes]
    return [sorted(zip(*(post[name].tolist() for name in ("kind", "bytes", "peer")), strict=True)) for post in own]


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_trace_from_near_replays_at_a_distance_as_one_with_the_exchanges_of_a_run_there(name):
    nodes, sizes, host_nodes = CASES[name]
    near, far = (planned(nodes, sizes, host_nodes, exchanges=own) for own in (False, True))
    assert posts(seen_on(near, apart(host_nodes))) == posts(far)
    found, wanted = (replay(own, apart(host_nodes)) for own in (near, far))
    assert found.finish_s == pytest.approx(wanted.finish_s, rel=1e-3)
    assert found.bytes_sent == exactly(wanted.bytes_sent)
    assert found.messages == wanted.messages


@pytest.mark.parametrize("nodes", [2, 4])
def test_an_exchange_among_all_goes_at_once_at_a_distance(nodes):
    """Near, each turn takes a latency; at a distance all take one."""
    size, latency = 1_000_000, 0.02
    near, far = apart(latency_s=latency, in_turns=False), apart(latency_s=latency)
    events = []
    for rank in range(nodes):
        node = PlannedNode(rank, nodes, COST, 0.0)
        post_exchange(node, [size] * (nodes - 1))
        node.builder.mark("step")
        events.append(node.builder.to_arrays())
    trace = merge(events, gflops=100.0)
    bytes_s = 8 * size * (nodes - 1) / LINK["bandwidth_out"]
    assert replay(trace, near, compute_scale=1.0).seconds == exactly(bytes_s + (nodes - 1) * latency)
    assert replay(trace, far, compute_scale=1.0).seconds == exactly(bytes_s + latency)
    assert posts(seen_on(trace, far)) == posts(trace)


@pytest.mark.parametrize(
    "near",
    [
        apart(latency_s=FAR_S / 2 - 1e-9),
        apart(backend="nccl"),
        apart(in_turns=False),
        apart(4),  # all nodes are on one host
    ],
)
def test_near_nodes_and_those_with_nccl_keep_the_collective(near):
    recorded = planned(4, (4000, 300_000), 1, exchanges=False)
    assert seen_on(recorded, near) is recorded
    assert not takes_turns(FAR_S - 1e-9, "gloo")
    assert takes_turns(FAR_S, "gloo")
    assert not takes_turns(1.0, "nccl")


def test_what_is_seen_at_a_distance_stays_so():
    seen = seen_on(planned(3, (10_000_000,), 1, exchanges=False), apart())
    assert seen_on(seen, apart()) is seen


def test_hosts_that_the_nodes_do_not_fill_do_not_add_up_first():
    recorded = planned(3, (10_000_000,), 1, exchanges=False)
    assert posts(seen_on(recorded, apart(2))) == posts(seen_on(recorded, apart()))


def test_of_nodes_that_repeat_one_alone_is_replayed():
    recorded = same(4, [("compute", 0.1), ("post", "all_reduce", 20_000_000), ("wait", 0)])
    whole, folded = (replay(recorded, apart(), folded=own) for own in (False, True))
    assert folded.finish_s == exactly(whole.finish_s)
    assert folded.bytes_sent == exactly(whole.bytes_sent)


STEP = [("compute", 0.1), ("post", "all_reduce", 20_000_000), ("wait", 0), ("mark", "step")]


@pytest.mark.parametrize("size", [4000, 20_000_000])
def test_of_equal_hosts_one_alone_is_replayed(size):
    program = [("post", "all_reduce", size) if operation[0] == "post" else operation for operation in STEP]
    events = same(1, program).nodes
    whole, one = (merge(events * count, gflops=100.0, world_size=12) for count in (12, 1))
    for profile in (apart(4), apart(3)):
        wanted = replay(whole, profile, folded=False)
        for recorded in (whole, one):
            found = replay(recorded, profile)
            assert found.finish_s == exactly(wanted.finish_s)
            assert found.bytes_sent == exactly(wanted.bytes_sent)


def test_of_a_thousand_nodes_a_host_is_expanded():
    recorded = merge(same(1, STEP).nodes, gflops=100.0, world_size=1024)
    assert len(seen_on(recorded, apart(8)).nodes) == 8
    assert len(seen_on(merge(recorded.nodes * 4, gflops=100.0, world_size=1024), apart(8)).nodes) == 8
    assert len(seen_on(recorded, apart(5)).nodes) == 1  # they do not fill hosts


@pytest.mark.parametrize(
    "program",
    [
        [("post", "all_reduce", 20_000_000)],
        [("post", "all_reduce", 20_000_000), ("post", "work", 0, (), 0, (0,)), ("wait", 0), ("wait", 1)],
    ],
)
def test_an_all_reduce_that_training_does_not_await_alone_stays_gloos(program):
    recorded = same(3, program)
    assert seen_on(recorded, apart()) is recorded


def test_other_operations_keep_their_order_and_their_numbers():
    program = [
        ("post", "all_reduce", 20_000_000),
        ("post", "work", 0),
        ("post", "work", 0, (), 0, (1,)),
        ("wait_before", "all_gather", (), 0),
        ("post", "all_gather", 500),
        ("wait", 2),
        ("wait", 0),
        ("mark", "step"),
    ]
    found = replay(same(2, program), apart(), rounds=3)
    assert found.bytes_sent == exactly(np.full(2, 3 * (20_000_000 + 500)))


@pytest.mark.parametrize("seed", range(6))
def test_random_traces_replay_at_a_distance(seed):
    random = np.random.default_rng(seed)
    nodes = int(random.integers(2, 7))
    recorded = random_trace(random, nodes, operations=12, rounds=3)
    found = replay(recorded, apart(int(random.integers(1, 3))))
    assert found.seconds > 0
    assert np.isfinite(found.finish_s).all()


def test_in_turns_in_a_lab_with_late_packets():
    """Seconds measured in the lab at 1 Gbit/s (results/bench.md), between two and four nodes."""
    link = {"bandwidth_out": 0.956e9, "bandwidth_in": 0.956e9, "burst_bytes": 245_000, "window_bytes": TCP_WINDOW}
    for nodes, size, latency, measured, off in (
        (2, 32_000_000, 0.010, 0.2772, 0.02), (4, 25_000_000, 0.010, 0.3214, 0.02),
        # Both ways Linux wakes a sender sooner than after a third of its window.
        (2, 100_000_000, 0.025, 1.2524, 0.22), (4, 100_000_000, 0.025, 1.2618, 0.02),
        (4, 12_000_000, 0.025, 0.1813, 0.05),
    ):  # fmt: skip
        found = replay(same(nodes, blocking("all_reduce", size)), apart(latency_s=latency, **link)).seconds
        assert found == pytest.approx(measured, rel=off)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_other_collectives_go_at_once_at_a_distance(kind, nodes):
    """Of a reduce-scatter, a node sends all but its own part of the tensor; of an all-gather, its part to each."""
    size, latency = 1_200_000, 0.02
    sent = size * (nodes - 1) / (nodes if kind == "reduce_scatter" else 1)
    for far, latencies in ((True, 1), (False, nodes - 1)):
        there = apart(latency_s=latency, in_turns=far)
        found = replay(same(nodes, blocking(kind, size)), there, compute_scale=1.0).seconds
        assert found == exactly(8 * sent / LINK["bandwidth_out"] + latencies * latency)
