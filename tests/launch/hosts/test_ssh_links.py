"""Links that are slower than others, and the cluster profile of what was measured."""

import itertools
from collections import Counter

import pytest

from istbench.cluster.profile import MessageCosts, Rack, parse_profile
from istbench.launch.hosts.links import (
    HostLink,
    measure_together,
    permutations,
    rates_of,
    shared_link,
    shared_links,
    slow_links,
)
from istbench.launch.hosts.profile import MeasuredNode, profile_toml
from istbench.launch.hosts.remote_programs import BusBandwidth

CARRYING = MessageCosts(message_s=90e-6, next_s=50e-6, cpu_s_per_message=30e-6, cpu_s_per_byte=5e-10)


def node(gflops, memory, cores):
    """The measurements of the only process of a host."""
    return [MeasuredNode(gflops=gflops, memory_gb_per_s=10.0, memory=memory, cores=cores)]


def links(hosts, rates=None):
    """Links of 1 Gbit/s between all `hosts`, but for those with `rates` of their own, by (from, to)."""
    return [
        HostLink(source=a, target=b, bandwidth=(rates or {}).get((a, b), 1e9), latency_s=1e-4)
        for a, b in itertools.permutations(hosts, 2)
    ]


def test_links_much_alike_are_none_of_them_slow():
    assert slow_links(links("abc", {("a", "b"): 0.8e9, ("c", "a"): 1.1e9})) == []


@pytest.mark.parametrize("names", ["ab", "abc", "abcd"])
def test_one_link_of_half_the_bandwidth_is_named(names):
    (line,) = slow_links(links(names, {("b", "a"): 0.5e9}))
    assert line == "b to a carries 500 Mbit/s; usual is 1 Gbit/s"


@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_a_host_that_is_slow_both_ways_is_named_and_not_its_every_link(names):
    rates = {(a, b): 0.5e9 for a, b in itertools.permutations(names, 2) if "b" in (a, b)}
    assert slow_links(links(names, rates)) == [
        "b sends to all others at 500 Mbit/s at most; usual is 1 Gbit/s",
        "b receives from all others at 500 Mbit/s at most; usual is 1 Gbit/s",
    ]


def test_a_profile_is_of_the_slowest_host_and_link():
    nodes = {
        "a": node(300.0, 2**35, 8),
        "b": node(200.0, 2**34, 4),
    }
    measured = links("ab", {("a", "b"): 0.9e9, ("b", "a"): 0.4e9})
    text = profile_toml(nodes, {"a": 1, "b": 1}, measured, rates_of(measured), CARRYING, "2026-01-31")
    profile = parse_profile(text, name="own", where="own.toml")
    assert (profile.gflops, profile.memory_gib, profile.cores) == (200.0, 16.0, 4.0)
    assert (profile.bandwidth_out, profile.bandwidth_in) == (0.4e9, 0.4e9)
    assert (profile.latency_s, profile.message_s) == (1e-4, pytest.approx(40e-6))
    assert (profile.overhead_s, profile.cpu_s_per_byte) == (50e-6, 5e-10)
    assert "b, the slowest" in profile.source


def test_a_profile_has_no_more_than_what_links_carry_together():
    nodes = {name: node(200.0, 2**34, 4) for name in "ab"}
    together = dict.fromkeys(rates_of(links("ab")), 0.45e9)
    text = profile_toml(nodes, {"a": 1, "b": 1}, links("ab"), together, CARRYING, "2026-01-31")
    profile = parse_profile(text, name="own", where="own.toml")
    assert (profile.bandwidth_out, profile.bandwidth_in, profile.backplane) == (1e9, 1e9, 0.9e9)
    assert "1 Gbit/s by one TCP connection alone, 450 Mbit/s while all hosts send at once" in profile.source
    bus = BusBandwidth(backend="gloo", nodes=2, bytes=2**20, seconds=0.1, right=True)
    text = profile_toml(nodes, {"a": 1, "b": 1}, links("ab"), together, CARRYING, "2026-01-31", bus)
    assert "bus bandwidth of an all-reduce by gloo 83.9 Mbit/s; " in text


def measured_together(hosts, capacity, route):
    """Rates of links of 1 Gbit/s, while each host sends to one other over the shared links of its `route`."""
    found = {}
    for pairs in permutations(hosts):
        users = Counter(link for pair in pairs for link in route(*pair))
        for source, target in pairs:
            found[source, target] = min([1e9, *(capacity / users[link] for link in route(source, target))])
    return found


def racks_of(size, hosts):
    def route(*pair):
        source, target = (hosts.index(name) // size for name in pair)
        return [] if source == target else [("up", source), ("down", target)]

    return route


def backplane(*pair):
    return ["all"]


@pytest.mark.parametrize(
    ("hosts", "route", "capacity", "rack"),
    [
        ("abcd", racks_of(2, "abcd"), 1e9, 2),
        ("abcdef", racks_of(2, "abcdef"), 1e9, 2),
        ("abcdef", racks_of(3, "abcdef"), 1.5e9, 3),
        ("abcde", racks_of(3, "abcde"), 0.8e9, 3),
        ("abcd", backplane, 2e9, None),
        ("abc", backplane, 1e9, None),
        ("ab", backplane, 1e9, None),
    ],
)
def test_the_shared_link_that_explains_slower_links_is_found(hosts, route, capacity, rack):
    found = shared_link(links(hosts), measured_together(hosts, capacity, route))
    assert (found.rack, found.bandwidth) == (rack, pytest.approx(capacity, rel=0.02))
    assert found.error < 0.1


def test_no_shared_link_is_found_where_none_explains_the_rates():
    assert shared_link(links("abcd"), rates_of(links("abcd"))) is None
    # One host is busy.
    rates = {(a, b): 0.1e9 for a, b in itertools.permutations("abcdef", 2) if a == "a"}
    assert shared_link(links("abcdef"), rates_of(links("abcdef", rates))) is None


def test_a_profile_has_the_uplink_that_all_hosts_at_once_show():
    nodes = {name: node(200.0, 2**34, 4) for name in "abcd"}
    together = measured_together("abcd", 1e9, racks_of(2, "abcd"))
    text = profile_toml(nodes, dict.fromkeys("abcd", 2), links("abcd"), together, CARRYING, "2026-01-31")
    profile = parse_profile(text, name="own", where="own.toml")
    assert (profile.bandwidth_out, profile.rack) == (0.5e9, Rack(hosts=4, uplink=1e9))
    assert (
        "assumed: every 2 hosts, in this order, share a switch with an uplink of 1 Gbit/s each way"
        in profile.source
    )
    together = measured_together("abcd", 1.5e9, backplane)
    text = profile_toml(nodes, dict.fromkeys("abcd", 1), links("abcd"), together, CARRYING, "2026-01-31")
    profile = parse_profile(text, name="own", where="own.toml")
    assert (profile.bandwidth_out, profile.backplane, profile.rack) == (1e9, 1.5e9, None)
    assert "assumed: all hosts share one switch or medium of 1.5 Gbit/s in total" in profile.source


def test_links_that_share_something_are_named():
    assert shared_links(links("ab"), {("a", "b"): 0.45e9, ("b", "a"): 0.9e9}) == [
        "a to b carries 450 Mbit/s while all hosts send at once, 1 Gbit/s alone"
    ]


class Carries:
    """A host whose link carries `rates` in bits/s while all send, one after another."""

    def __init__(self, name, *rates):
        self.name, self.rates = name, list(rates)

    def ask(self, do, **asked):
        return do

    def answer(self, asked, timeout_s=None):
        return 4711 if asked == "listen" else self.rates.pop(0)

    def do(self, what):
        assert what == "stop_listening"


@pytest.mark.parametrize("again", [0.9e9, 0.4e9])
def test_links_that_seem_to_share_something_are_measured_again(again):
    hosts = [Carries("a", 0.45e9, again), Carries("b", 0.9e9, 0.8e9)]
    ring = measure_together(hosts, {"a": "10.0.0.1", "b": "10.0.0.2"}, 1.0, links("ab"))
    assert ring == {("a", "b"): max(again, 0.45e9), ("b", "a"): 0.9e9}
    assert bool(shared_links(links("ab"), ring)) == (again < 0.45e9)


def test_links_that_carry_what_each_does_alone_are_measured_once():
    hosts = [Carries("a", 0.9e9, 1.0), Carries("b", 0.9e9, 1.0)]
    measure_together(hosts, {"a": "10.0.0.1", "b": "10.0.0.2"}, 1.0, links("ab"))
    assert [host.rates for host in hosts] == [[1.0], [1.0]]


def test_processes_of_a_host_share_its_links_and_gpus_take_no_cores():
    nodes = {
        "a": node(9e3, 2**33, None),
        "b": node(9e3, 2**33, None),
    }
    text = profile_toml(nodes, {"a": 2, "b": 4}, links("ab"), rates_of(links("ab")), CARRYING, "2026-01-31")
    profile = parse_profile(text, name="own", where="own.toml")
    assert (profile.bandwidth_out, profile.cores) == (0.25e9, None)
