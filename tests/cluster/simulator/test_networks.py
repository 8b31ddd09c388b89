"""Networks beyond one link a node: hosts of several nodes, racks with uplinks, a backplane, and unequal nodes."""

from collections import Counter

import numpy as np
import pytest
from garbage import quick
from hypothesis import given
from hypothesis import strategies as st
from traces import (
    BANDWIDTH,
    FLOW,
    LATENCY,
    OVERHEAD,
    SIZE,
    blocking,
    cluster,
    exactly,
    random_trace,
    same,
    trace,
    transfers,
)

from istbench.cluster.clock import cluster_time, dollars
from istbench.cluster.profile import Rack, SharedHost
from istbench.cluster.simulator import replay

LINK = 8 * BANDWIDTH  # bits a second
INSIDE = SharedHost(nodes=2, bandwidth=4 * LINK, latency_s=LATENCY / 10)
# Both hosts of a rack can send as much as one link carries.
HALF = Rack(hosts=2, uplink=LINK)


@pytest.mark.parametrize(
    ("pairs", "changes", "flows"),
    [
        ([(0, 1), (2, 3)], {"rack": HALF}, 1.0),  # inside racks
        ([(0, 2)], {"rack": HALF}, 1.0),  # one link's worth crosses
        ([(0, 2), (1, 3)], {"rack": HALF}, 2.0),  # share the uplink
        ([(0, 2), (3, 1)], {"rack": HALF}, 1.0),  # up and down are apart
        ([(0, 2), (2, 0)], {"rack": HALF}, 1.0),
        ([(0, 4), (2, 4)], {"rack": HALF}, 2.0),  # share the last host's link
        ([(0, 4), (2, 5)], {"rack": HALF}, 2.0),  # share the way down to the last rack
        ([(0, 2), (1, 3)], {"rack": Rack(hosts=2, uplink=2 * LINK)}, 1.0),
        ([(0, 1), (2, 3)], {"backplane": LINK}, 2.0),
        ([(0, 1), (2, 3), (4, 5)], {"backplane": 2 * LINK}, 1.5),
        ([(0, 2), (1, 3)], {"rack": HALF, "backplane": LINK / 2}, 4.0),
        ([(0, 1)], {"rack": Rack(hosts=1, uplink=LINK / 4)}, 4.0),
        ([(0, 2), (1, 3)], {"host": INSIDE}, 2.0),  # share the host's link
        ([(0, 2), (1, 2)], {"host": INSIDE}, 2.0),
        ([(0, 2), (3, 1)], {"host": INSIDE}, 1.0),
        ([(0, 2), (3, 1)], {"host": INSIDE, "full_duplex": False}, 2.0),
        ([(0, 4), (2, 4)], {"host": INSIDE, "rack": Rack(hosts=2, uplink=LINK / 2)}, 4.0),
    ],
)
def test_messages_share_the_links_on_their_way(pairs, changes, flows):
    found = replay(transfers(dict.fromkeys(pairs, SIZE), 6), cluster(**changes))
    assert found.seconds == exactly(OVERHEAD + flows * FLOW + LATENCY)
    assert found.bytes_sent.sum() == len(pairs) * SIZE


def test_nodes_of_a_host_have_links_and_a_latency_of_their_own():
    found = replay(transfers({(0, 1): SIZE, (0, 2): SIZE}, 4), cluster(host=INSIDE))
    assert found.finish_s[1, 0] == exactly(OVERHEAD + FLOW / 4 + LATENCY / 10)
    assert found.finish_s[2, 0] == exactly(OVERHEAD + FLOW + LATENCY)
    assert found.link_use == exactly(FLOW / found.seconds)


@pytest.mark.parametrize("nodes", [4, 6])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize(("inside", "slowest"), [(4.0, 1.0), (1.0, 1.0), (0.5, 2.0)])
def test_a_ring_crosses_the_link_of_each_host_once_each_way(nodes, backend, inside, slowest):
    """2 (n-1)/n tensors out and in, in the seconds of the slower of the link and the links inside."""
    near = SharedHost(nodes=2, bandwidth=inside * LINK, latency_s=0.0)
    apart = cluster(host=near, backend=backend, latency_s=0.0, overhead_s=0.0)
    found = replay(same(nodes, blocking("all_reduce", nodes * SIZE)), apart)
    hops = 2 * (nodes - 1)
    # The first hop over the slower link starts at once, and the last one ends the all-reduce.
    assert found.seconds == exactly(hops * slowest * FLOW)
    assert found.link_use == exactly(1.0)


@pytest.mark.parametrize(("nodes", "size"), [(4, 2), (6, 2), (6, 3)])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_in_turns_every_node_sends_its_part_to_every_node_of_other_hosts(nodes, size, kind):
    """A link carries g (n - g) parts: g times the bytes that a ring or an exchange by hosts needs."""
    apart = cluster(host=SharedHost(nodes=size, bandwidth=1e3 * LINK, latency_s=0.0), latency_s=0.0, overhead_s=0.0)
    tensor = SIZE if kind == "all_gather" else nodes * SIZE
    found = replay(same(nodes, blocking(kind, tensor)), apart)
    crossing = size * (nodes - size) * FLOW
    assert found.link_use == exactly(crossing / found.seconds)
    assert crossing <= found.seconds < 1.1 * crossing


def test_a_message_inside_a_host_overtakes_one_that_left_before_it_for_another_host():
    # The one to node 2 leaves first and is under way for longer.
    found = replay(transfers({(0, 2): 0, (0, 1): SIZE}, 3), cluster(host=INSIDE, latency_s=1.0))
    assert found.finish_s[1, 0] == exactly(OVERHEAD + FLOW / 4 + LATENCY / 10)
    assert found.finish_s[2, 0] == exactly(OVERHEAD + 1.0)


def test_what_the_uplink_leaves_goes_to_messages_inside_the_rack():
    # Nodes 0 and 1 have half an uplink each; node 0 has half of its link left for node 1.
    sizes = {(0, 2): SIZE, (1, 3): SIZE, (0, 1): SIZE}
    found = replay(transfers(sizes, 4), cluster(rack=HALF))
    assert found.seconds == exactly(OVERHEAD + 2 * FLOW + LATENCY)
    assert found.link_use == exactly(2 * FLOW / found.seconds)


def test_an_uplink_sends_its_burst_at_once():
    burst = SIZE // 4
    found = replay(transfers({(0, 2): SIZE, (1, 3): SIZE}, 4), cluster(rack=HALF, burst_bytes=burst))
    assert found.seconds == exactly(OVERHEAD + (2 * SIZE - burst) / BANDWIDTH + LATENCY)


def test_a_link_spends_its_burst_on_messages_whose_senders_have_spent_theirs():
    burst = SIZE // 4
    # Nodes 0 and 1 spend their bursts on nodes 3 and 4, and then send to node 2, which has its own.
    senders = [
        [("post", "send", burst, (other,)), ("wait", 0), ("post", "send", 2 * burst, (2,)), ("wait", 1)]
        for other in (3, 4)
    ]
    receiver = [*(("post", "receive", 2 * burst, (rank,)) for rank in (0, 1)), ("wait", 0), ("wait", 1)]
    others = [[("post", "receive", burst, (rank,)), ("wait", 0)] for rank in (0, 1)]
    found = replay(trace(*senders, receiver, *others), cluster(burst_bytes=burst, overhead_s=0.0))
    both_whole, shared = burst / BANDWIDTH, 2 * burst / BANDWIDTH
    assert found.seconds == exactly(both_whole + shared + LATENCY)


def test_without_full_duplex_a_message_spends_the_bursts_of_both_hosts():
    burst = SIZE // 4
    ring = transfers({(0, 1): SIZE, (1, 0): SIZE}, 2)
    found = replay(ring, cluster(full_duplex=False, burst_bytes=burst, bandwidth_in=LINK / 2))
    assert found.seconds == exactly(OVERHEAD + (2 * SIZE - burst) / BANDWIDTH + LATENCY)


def test_a_ring_crosses_an_uplink_of_one_link_unhindered():
    ring = same(4, blocking("all_reduce", SIZE))
    assert replay(ring, cluster(rack=HALF)).seconds == replay(ring, cluster()).seconds
    slow = Rack(hosts=2, uplink=LINK / 2)
    assert replay(ring, cluster(rack=slow)).seconds > 1.4 * replay(ring, cluster()).seconds


def test_a_direct_all_gather_waits_at_an_uplink_that_a_ring_crosses_unhindered():
    gather = same(4, blocking("all_gather", SIZE))
    by_ring = cluster(rack=HALF, backend="nccl")
    assert replay(gather, by_ring).seconds == replay(gather, cluster(backend="nccl")).seconds
    assert replay(gather, cluster(rack=HALF)).seconds > 1.3 * replay(gather, cluster()).seconds


@pytest.mark.parametrize("seed", range(6))
def test_a_rack_that_is_no_bottleneck_changes_no_bit(seed):
    random = np.random.default_rng(seed)
    work = random_trace(random, 6, operations=12, rounds=2)
    plain = cluster(full_duplex=bool(seed % 3), burst_bytes=1000.0 * (seed % 2))
    wide = cluster(
        full_duplex=plain.full_duplex,
        burst_bytes=plain.burst_bytes,
        rack=Rack(hosts=2, uplink=2 * LINK),
        speeds=(1.0,),
    )
    assert wide.uniform
    assert (replay(work, wide).finish_s == replay(work, plain).finish_s).all()


def test_a_slow_node_computes_longer_also_beside_its_training_thread():
    program = [("compute", 1.0), ("post", "work", 0), ("wait", 0)]
    made = same(3, program)
    for events in made.nodes:
        events["seconds"][events["kind"] == 6] = 0.5
    found = replay(made, cluster(speeds=(1.0, 0.5)), compute_scale=2.0)
    assert found.finish_s[:, 0].tolist() == [exactly(3.0), exactly(6.0), exactly(3.0)]
    assert found.compute_s[:, -1].tolist() == [exactly(3.0), exactly(6.0), exactly(3.0)]


def test_others_wait_for_a_slow_node():
    program = [("compute", 1.0), ("post", "barrier", 0), ("wait", 0), ("mark", "step")]
    found = cluster_time(same(2, program), cluster(speeds=(1.0, 0.25), latency_s=0.0, overhead_s=0.0), [1])
    assert found.seconds == (exactly(4.0),)
    assert found.idle == exactly(3.0 / 4 / 2)


def test_nodes_cost_the_price_of_their_hosts():
    profile = cluster(price_per_hour=12.0, host=SharedHost(nodes=4, bandwidth=LINK, latency_s=0.0))
    assert [dollars(profile, nodes, 3600) for nodes in (4, 5, 8)] == [12.0, 24.0, 24.0]
    assert dollars(cluster(price_per_hour=3.0), 5, 3600) == 15.0


def route(profile, source, target):
    """The names of the links from node `source` to node `target`."""
    hosts = [rank // profile.host_nodes for rank in (source, target)]
    if hosts[0] == hosts[1]:
        return [("inside out", source), ("inside in", target)]
    into = "in" if profile.full_duplex else "out"
    links = [("out", hosts[0]), (into, hosts[1]), *([("backplane", 0)] if profile.backplane else [])]
    racks = [host // profile.rack.hosts for host in hosts] if profile.rack else [0, 0]
    return links if racks[0] == racks[1] else [*links, ("up", racks[0]), ("down", racks[1])]


def capacity(profile, link):
    """Bytes a second."""
    kind = link[0]
    if kind.startswith("inside"):
        return profile.host.bandwidth / 8
    if kind in ("up", "down"):
        return profile.rack.uplink / 8
    return {"out": profile.bandwidth_out, "in": profile.bandwidth_in, "backplane": profile.backplane}[kind] / 8


def fair(profile, routes):
    """Max-min fair rates of flows by the definition: each is among the largest of a link that is full."""
    rates, left = {}, {link: capacity(profile, link) for way in routes.values() for link in way}
    while len(rates) < len(routes):
        load = Counter(link for flow, way in routes.items() if flow not in rates for link in way)
        tightest = min(load, key=lambda link: left[link] / load[link])
        share = left[tightest] / load[tightest]
        for flow in [flow for flow, way in routes.items() if flow not in rates and tightest in way]:
            rates[flow] = share
            for link in routes[flow]:
                left[link] -= share
    for flow, way in routes.items():
        on = {link: [rates[other] for other, theirs in routes.items() if link in theirs] for link in way}
        assert all(sum(on[link]) <= capacity(profile, link) * (1 + 1e-9) for link in way)
        full = [link for link in way if sum(on[link]) >= capacity(profile, link) * (1 - 1e-9)]
        assert any(rates[flow] >= max(on[link]) * (1 - 1e-9) for link in full)
    return rates


def ends(profile, sizes):
    """When the last byte of each flow leaves, if all start at zero."""
    left, now, found = {flow: float(size) for flow, size in sizes.items()}, 0.0, {}
    while left:
        rates = fair(profile, {flow: route(profile, *flow) for flow in left})
        passed = min(size / rates[flow] for flow, size in left.items())
        now += passed
        for flow in list(left):
            left[flow] -= passed * rates[flow]
            if left[flow] <= 1e-6:
                found[flow] = now
                del left[flow]
    return found


FACTORS = st.sampled_from([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0])


@st.composite
def networks(draw):
    hosts = draw(st.integers(1, 3))
    inside = SharedHost(nodes=hosts, bandwidth=draw(FACTORS) * LINK, latency_s=LATENCY / 3) if hosts > 1 else None
    rack = Rack(hosts=draw(st.integers(1, 3)), uplink=draw(FACTORS) * LINK) if draw(st.booleans()) else None
    return cluster(
        bandwidth_in=draw(FACTORS) * LINK,
        full_duplex=draw(st.booleans()),
        backplane=draw(FACTORS) * LINK if draw(st.booleans()) else None,
        host=inside,
        rack=rack,
    )


@st.composite
def flows(draw):
    nodes = draw(st.integers(2, 8))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)).filter(lambda pair: pair[0] != pair[1])
    return nodes, draw(st.dictionaries(pairs, st.integers(1000, 100_000), min_size=1, max_size=16))


@quick(400)
@given(profile=networks(), work=flows())
def test_random_flows_on_random_networks_are_as_fast_as_max_min_shares_say(profile, work):
    nodes, sizes = work
    expected = np.zeros(nodes)
    for (source, target), end in ends(profile, sizes).items():
        inside = source // profile.host_nodes == target // profile.host_nodes
        latency = profile.host.latency_s if inside else LATENCY
        expected[source] = max(expected[source], OVERHEAD + end)
        expected[target] = max(expected[target], OVERHEAD + end + latency)
    found = replay(transfers(sizes, nodes), profile)
    assert found.finish_s[:, 0] == pytest.approx(expected, rel=1e-6)
    assert found.link_use <= 1 + 1e-9
