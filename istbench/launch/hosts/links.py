"""Measure the links between hosts, one at a time and all at once, and name the slow ones."""

import itertools
import secrets
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from istbench.cluster.profile import bandwidth_text
from istbench.launch.hosts.connection import Connection, Lost, Refused, each
from istbench.launch.hosts.group import Unfit, listening

MEASURES_S = 1.0
SLOW = 0.7  # share of the usual bandwidth, or of the bandwidth of a link alone


@dataclass(frozen=True, kw_only=True)
class HostLink:
    """A link from one host to another: bandwidth in bits/s, latency one way in seconds."""

    source: str
    target: str
    bandwidth: float
    latency_s: float


def measure_links(
    connections: Sequence[Connection], addresses: Mapping[str, str], seconds: float, say: Callable[[HostLink], None]
) -> list[HostLink]:
    """Measure every link for `seconds`, one after another; calls `say` with each.

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
            say(link)
        for ends, link in found.items():
            if link.bandwidth < SLOW * _usual(list(found.values())):
                found[ends] = replace(link, bandwidth=max(link.bandwidth, begin("bandwidth", *ends)()))
    return list(found.values())


def permutations(hosts: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Rounds in which every host sends to one other and receives from one. Together they have every pair once."""
    return [
        [(name, hosts[(place + further) % len(hosts)]) for place, name in enumerate(hosts)]
        for further in range(1, len(hosts))
    ]


def measure_together(
    connections: Sequence[Connection], addresses: Mapping[str, str], seconds: float, links: Sequence[HostLink]
) -> list[HostLink]:
    """Every link of `links`, with its bandwidth while all hosts send to one other each, as in training.

    Links that share Wi-Fi, a half-duplex line, a small switch or an uplink carry less than each one alone. If one
    of a round carries much less, that round is measured again and the faster result counts: a shared link is slow
    both times, but a host may have been busy the first time.

    Raises:
        Unfit: if a host fails.
    """
    hosts = {connection.name: connection for connection in connections}
    alone = {(link.source, link.target): link for link in links}
    found: dict[tuple[str, str], HostLink] = {}
    with _measuring(connections, addresses, seconds) as begin:

        def at_once(pairs: Sequence[tuple[str, str]]) -> list[HostLink]:
            ends = [(pair, begin("bandwidth", hosts[pair[0]], hosts[pair[1]])) for pair in pairs]
            return [replace(alone[pair], bandwidth=end()) for pair, end in ends]

        for pairs in permutations(list(hosts)):
            rates = at_once(pairs)
            if shared_links(links, rates):
                both = zip(rates, at_once(pairs), strict=True)
                rates = [max(pair, key=lambda link: link.bandwidth) for pair in both]
            found.update(zip(pairs, rates, strict=True))
    return [found[pair] for pair in alone]


@contextmanager
def _measuring(
    connections: Sequence[Connection], addresses: Mapping[str, str], seconds: float
) -> Iterator[Callable[[str, Connection, Connection], Callable[[], float]]]:
    """A function that starts a measurement from one host to another, and returns a function that waits for it."""
    token = secrets.token_hex(32)
    places = listening(connections, addresses, token)

    def begin(what: str, source: Connection, target: Connection) -> Callable[[], float]:
        asked = source.ask(what, place=places[target.name], token=token, seconds=seconds)

        def end() -> float:
            try:
                return float(source.answer(asked, 60 + 20 * seconds))
            except (Lost, Refused) as error:
                raise Unfit([f"{source.name}: sending to {target.name}: {error}"]) from None

        return end

    try:
        yield begin
    finally:
        each(connections, lambda connection: connection.do("stop_listening"))


def shared_links(links: Sequence[HostLink], together: Sequence[HostLink]) -> list[str]:
    """A line for each link of `together` that carries much less while all hosts send than it does in `links`."""
    alone = {(link.source, link.target): link.bandwidth for link in links}
    return [
        f"{link.source} to {link.target} carries {bandwidth_text(link.bandwidth, 3)} while all hosts send at once, "
        f"{bandwidth_text(alone[link.source, link.target], 3)} alone"
        for link in together
        if link.bandwidth < SLOW * alone[link.source, link.target]
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
