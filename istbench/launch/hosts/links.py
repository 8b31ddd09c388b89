"""Measure the network of hosts: every link alone, all at once, an all-reduce, and copies between GPUs of a host.

Names slow links, and the uplink or backplane that explains why links carry less together than alone.
"""

import itertools
import math
import secrets
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from istbench.base.machine import HOST
from istbench.base.options.numbers import Amount
from istbench.cluster.profile import bandwidth_text
from istbench.launch.hosts.connection import Connection, Lost, Refused, each, told
from istbench.launch.hosts.group import HostGroup, Say, Unfit, ask_all, listening
from istbench.launch.hosts.remote_programs import BusBandwidth, HostGpus, program
from istbench.launch.processes.world import World

MEASURES_S = 1.0
_WAITS_S = 150.0
SLOW = 0.7  # share of the usual bandwidth, or of the bandwidth of a link alone
# An explanation of slower links must leave at most this share of the error that none has.
_EXPLAINS = 0.5
Pair = tuple[str, str]
Rates = Mapping[Pair, float]
"""Bandwidths in bits/s, by the host that sends and the one that receives."""


@dataclass(frozen=True, kw_only=True)
class HostLink:
    """A link from one host to another: bandwidth in bits/s, latency one way in seconds."""

    source: str
    target: str
    bandwidth: float
    latency_s: float


def measure_links(
    connections: Sequence[Connection], addresses: Mapping[str, str], seconds: float, say: Say
) -> list[HostLink]:
    """Measure every link for `seconds`, one after another, and say so of each.

    Links much slower than usual are measured again, and the faster result counts: a host may have been busy.
    Meanwhile hosts listen for callers with a token.

    Raises:
        Unfit: if a host fails.
    """
    found: dict[tuple[Connection, Connection], HostLink] = {}
    with _measuring(connections, addresses, seconds) as begin:
        for source, target in itertools.permutations(connections, 2):
            latency_s = begin("latency", source, target)()
            bandwidth = begin("bandwidth", source, target)()
            link = HostLink(source=source.name, target=target.name, bandwidth=bandwidth, latency_s=latency_s)
            found[source, target] = link
            say(f"measured {source.name} to {target.name}")
        for ends, link in found.items():
            if link.bandwidth < SLOW * _usual(list(found.values())):
                found[ends] = replace(link, bandwidth=max(link.bandwidth, begin("bandwidth", *ends)()))
    return list(found.values())


def permutations(hosts: Sequence[str]) -> list[list[Pair]]:
    """Rounds in which every host sends to one other and receives from one. Together they have every pair once."""
    return [
        [(name, hosts[(place + further) % len(hosts)]) for place, name in enumerate(hosts)]
        for further in range(1, len(hosts))
    ]


def measure_together(
    connections: Sequence[Connection], addresses: Mapping[str, str], seconds: float, links: Sequence[HostLink]
) -> Rates:
    """The rates of all `links` while all hosts send to one other each, as in training.

    Links that share Wi-Fi, a half-duplex line, a small switch or an uplink carry less than each one alone. If one
    of a round carries much less, that round is measured again and the faster result counts: a shared link is slow
    both times, but a host may have been busy the first time.

    Raises:
        Unfit: if a host fails.
    """
    hosts = {connection.name: connection for connection in connections}
    found: dict[Pair, float] = {}
    with _measuring(connections, addresses, seconds) as begin:

        def at_once(pairs: Sequence[Pair]) -> dict[Pair, float]:
            ends = {pair: begin("bandwidth", hosts[pair[0]], hosts[pair[1]]) for pair in pairs}
            return {pair: end() for pair, end in ends.items()}

        for pairs in permutations(list(hosts)):
            rates = at_once(pairs)
            if shared_links(links, rates):
                rates = {pair: max(rate, rates[pair]) for pair, rate in at_once(pairs).items()}
            found |= rates
    return found


@contextmanager
def _measuring(
    connections: Sequence[Connection], addresses: Mapping[str, str], seconds: float
) -> Iterator[Callable[[str, Connection, Connection], Callable[[], float]]]:
    """A function that starts a measurement from one host to another, and returns a function that waits for it."""
    places = listening(connections, addresses)

    def begin(what: str, source: Connection, target: Connection) -> Callable[[], float]:
        asked = source.ask(what, place=places[target.name], seconds=seconds)

        def end() -> float:
            try:
                return told(source.name, source.answer(asked, 60 + 20 * seconds), Amount)
            except (Lost, Refused) as error:
                raise Unfit([f"{source.name}: sending to {target.name}: {error}"]) from None

        return end

    try:
        yield begin
    finally:
        each(connections, lambda connection: connection.do("stop_listening"))


def rates_of(links: Sequence[HostLink]) -> dict[Pair, float]:
    """The rates of `links`, each alone."""
    return {(link.source, link.target): link.bandwidth for link in links}


def shared_links(links: Sequence[HostLink], together: Rates) -> list[str]:
    """A line for each link that carries much less while all hosts send, in `together`, than alone, in `links`."""
    alone = rates_of(links)
    return [
        f"{source} to {target} carries {bandwidth_text(rate, 3)} while all hosts send at once, "
        f"{bandwidth_text(alone[source, target], 3)} alone"
        for (source, target), rate in together.items()
        if rate < SLOW * alone[source, target]
    ]


def slow_links(links: Sequence[HostLink]) -> list[str]:
    """A line for each host that sends or receives much more slowly than others, and for each other slow link."""
    if len(links) < 2:
        return []
    usual = _usual(links)
    lines, told = [], set()
    for verb, end in (("sends to", "source"), ("receives from", "target")):
        for host in dict.fromkeys(getattr(link, end) for link in links):
            own = [link for link in links if getattr(link, end) == host]
            if len(own) > 1 and max(link.bandwidth for link in own) < SLOW * usual:
                most = bandwidth_text(max(link.bandwidth for link in own), 3)
                lines.append(f"{host} {verb} all others at {most} at most; usual is {bandwidth_text(usual, 3)}")
                told |= set(own)
    for link in links:
        if link not in told and link.bandwidth < SLOW * usual:
            lines.append(
                f"{link.source} to {link.target} carries {bandwidth_text(link.bandwidth, 3)}; usual is "
                f"{bandwidth_text(usual, 3)}"
            )
    return lines


def _usual(links: Sequence[HostLink]) -> float:
    """The median of the faster half: if one host of three is slow, so are most links."""
    rates = sorted(link.bandwidth for link in links)
    return statistics.median(rates[len(rates) // 2 :])


@dataclass(frozen=True, kw_only=True)
class SharedLink:
    """A link that all messages of some hosts share.

    Attributes:
        rack: hosts on each switch with an uplink, in the order measured; None for one backplane of all hosts.
        bandwidth: of the backplane, or of each uplink each way, bits/s.
        error: mean difference between the measured rates of all hosts at once and those that this link predicts.
    """

    rack: int | None
    bandwidth: float
    error: float

    @property
    def words(self) -> str:
        """The guess and its error, in one line."""
        rate = bandwidth_text(self.bandwidth, 3)
        share = f"which predicts the rates to {100 * self.error:.0f} % on average"
        if self.rack is None:
            return f"all hosts share one switch or medium of {rate} in total, {share}"
        return f"every {self.rack} hosts, in this order, share a switch with an uplink of {rate} each way, {share}"


def shared_link(links: Sequence[HostLink], together: Rates) -> SharedLink | None:
    """The backplane or uplinks that best explain the rates `together` of all hosts at once.

    None if no round of all hosts at once is much slower than its links alone, or nothing explains it.
    """
    alone = rates_of(links)
    hosts = list(dict.fromkeys(link.source for link in links))
    rounds = permutations(hosts)
    if not any(_total(together, pairs) < SLOW * _total(alone, pairs) for pairs in rounds):
        return None
    guesses = [guess for size in (None, *range(2, len(hosts))) for guess in _guess(hosts, size, alone, together)]
    best = min(guesses, key=lambda guess: guess.error, default=None)
    return best if best is not None and best.error < _EXPLAINS * _error(alone, together) else None


def _guess(hosts: Sequence[str], rack: int | None, alone: Rates, found: Rates) -> Iterator[SharedLink]:
    """The shared link of `rack` hosts with the bandwidth that full ones had."""
    routes = {pair: _route(hosts, rack, pair) for pair in alone}
    rounds, full = permutations(hosts), []
    for pairs in rounds:
        for link in {link for pair in pairs for link in routes[pair]}:
            users = [pair for pair in pairs if link in routes[pair]]
            if _total(found, users) < SLOW * _total(alone, users):
                full.append(_total(found, users))
    if full:
        bandwidth = statistics.median(full)
        predicted = {
            pair: rate
            for pairs in rounds
            for pair, rate in _fair({pair: routes[pair] for pair in pairs}, alone, bandwidth).items()
        }
        yield SharedLink(rack=rack, bandwidth=bandwidth, error=_error(predicted, found))


def _route(hosts: Sequence[str], rack: int | None, pair: Pair) -> list[str]:
    """The shared links between two hosts."""
    if rack is None:
        return ["backplane"]
    source, target = (hosts.index(name) // rack for name in pair)
    return [] if source == target else [f"up {source}", f"down {target}"]


def _fair(routes: Mapping[Pair, Sequence[str]], alone: Rates, bandwidth: float) -> dict[Pair, float]:
    """Max-min fair rates of all `routes` at once, over links of `bandwidth`, none faster than it is alone."""
    rates: dict[Pair, float] = {}
    left = dict.fromkeys((link for route in routes.values() for link in route), bandwidth)
    while len(rates) < len(routes):
        waiting = [pair for pair in routes if pair not in rates]
        users = Counter(link for pair in waiting for link in routes[pair])
        shares = {link: left[link] / users[link] for link in users}
        limits = {pair: min([alone[pair], *(shares[link] for link in routes[pair])]) for pair in waiting}
        least = min(limits.values())
        for pair in (pair for pair in waiting if limits[pair] <= least * (1 + 1e-9)):
            rates[pair] = least
            for link in routes[pair]:
                left[link] -= least
    return rates


def _error(predicted: Rates, found: Rates) -> float:
    apart = (abs(math.log(max(predicted[pair], 1.0) / max(rate, 1.0))) for pair, rate in found.items())
    return math.expm1(statistics.fmean(apart))


def _total(rates: Rates, pairs: Sequence[Pair]) -> float:
    return sum(rates[pair] for pair in pairs)


def check_gpus(connections: Sequence[Connection], group: HostGroup) -> dict[str, int]:
    """The GPUs that torch has on each host; copies between those of a host are compared.

    Raises:
        Unfit: with a line for each host whose copies differ.
    """
    asked = [host for host in connections if group.facts[host.name].gpus]
    named = ask_all(asked, "run_programs", tuple[HostGpus], lambda _: program("gpus"), _WAITS_S)
    if broken := [f"{name}: {gpus.broken}" for name, (gpus,) in named.items() if gpus.broken]:
        raise Unfit(broken)
    return {name: gpus.count for name, (gpus,) in named.items()}


def measure_bus(
    connections: Sequence[Connection], group: HostGroup, gpus: Mapping[str, int], seconds: float
) -> BusBandwidth | None:
    """An all-reduce of all processes of all hosts, by NCCL if each has a GPU, else by gloo; None for one process.

    gpus: by host.

    Raises:
        Unfit: if a host fails, or has other values than the mean.
    """
    slots = [host.host.slots for host in connections]
    nodes = sum(slots)
    if nodes < 2:
        return None
    first = dict(zip((host.name for host in connections), itertools.accumulate([0, *slots]), strict=False))
    own_gpu = all(gpus.get(host.name, 0) >= host.host.slots for host in connections)
    words, key = ("all_reduce", "cuda" if own_gpu else "cpu", str(seconds)), secrets.token_hex(32)

    def programs(host: Connection) -> dict[str, Any]:
        local_size, environments = host.host.slots, []
        common = {"TORCH_CPP_LOG_LEVEL": "ERROR", HOST: host.name}
        for slot in range(local_size):
            world = World(
                rank=first[host.name] + slot,
                size=nodes,
                local_rank=slot,
                local_size=local_size,
                master=group.addresses[connections[0].name],
                port=group.port,
            )
            threads = max(1, group.facts[host.name].cores // local_size)
            environments.append({**common, **world.environment(threads, key)})
        return program(*words, environments=environments)

    measured = ask_all(connections, "run_programs", list[BusBandwidth], programs, _WAITS_S)
    right = {name: sum(one.right for one in own) for name, own in measured.items()}
    if wrong := [host.name for host in connections if right[host.name] != host.host.slots]:
        raise Unfit([f"{name}: an all-reduce of all hosts gives other values than the mean" for name in wrong])
    return measured[connections[0].name][0]


def bus_words(bus: BusBandwidth, links: Sequence[HostLink]) -> tuple[str, str]:
    """The state of `bus`, ok or slow, and a line that compares it with the slowest of `links`."""
    rate = bandwidth_text(bus.bits_per_s, 3)
    size = f"{bus.bytes / 2**20:g} MiB in {bus.seconds:.3g} s"
    line = f"all {bus.nodes} nodes at once by {bus.backend}: bus bandwidth {rate} ({size})"
    if not links:
        return "ok", line
    share = bus.bits_per_s / min(link.bandwidth for link in links)
    line += f", {share:.0%} of the slowest link"
    if share >= SLOW:
        return "ok", line
    return "slow", f"{line}; name this rate as --bandwidth of `istbench estimate`"
