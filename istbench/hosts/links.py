"""Links between hosts: measured one at a time and many at once, and those named that are slow."""

import secrets
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from istbench.cluster.profile import bandwidth_text
from istbench.hosts.connection import Connection, Lost, Refused, each
from istbench.hosts.group import Unfit, listening

MEASURES_S = 1.0
_SLOW = 0.7  # of what the faster half of the links carry, or a link alone


@dataclass(frozen=True, kw_only=True)
class Link:
    """From one host to another: bandwidth in bits/s, and seconds one way."""

    source: str
    target: str
    bandwidth: float
    latency_s: float


def measure_links(
    connections: Sequence[Connection], addresses: Mapping[str, str], seconds: float, say: Callable[[Link], None]
) -> list[Link]:
    """Measure from every host to every other, one after another, `seconds` long; `say` hears of each.

    Hosts listen meanwhile, for those with a token.

    Raises:
        Unfit: where a host cannot.
    """
    found = []
    with _measuring(connections, addresses, seconds) as begin:
        for source in connections:
            for target in connections:
                if source is target:
                    continue
                latency_s = begin("latency", source, target)()
                bandwidth = begin("bandwidth", source, target)()
                found.append(Link(source=source.name, target=target.name, bandwidth=bandwidth, latency_s=latency_s))
                say(found[-1])
    return found


def measure_ring(
    connections: Sequence[Connection], addresses: Mapping[str, str], seconds: float, links: Sequence[Link]
) -> list[Link]:
    """Those of `links` that lead from every host to the next, with the bandwidth of each while all of them send.

    That is less than a link carries alone where they share something: Wi-Fi, a line that sends or receives, a
    switch that is too small. Training sends so. Where it is much less, all are measured again, and the faster
    of two counts: links share something every time, and a host is busy with something else for a moment.

    Raises:
        Unfit: where a host cannot.
    """
    ring = dict(zip(connections, [*connections[1:], connections[0]], strict=True))
    alone = {(link.source, link.target): link for link in links}
    with _measuring(connections, addresses, seconds) as begin:

        def together() -> list[Link]:
            ends = [(source, target, begin("bandwidth", source, target)) for source, target in ring.items()]
            return [replace(alone[source.name, target.name], bandwidth=end()) for source, target, end in ends]

        found = together()
        if shared_links(links, found):
            found = [max(pair, key=lambda link: link.bandwidth) for pair in zip(found, together(), strict=True)]
        return found


@contextmanager
def _measuring(
    connections: Sequence[Connection], addresses: Mapping[str, str], seconds: float
) -> Iterator[Callable[[str, Connection, Connection], Callable[[], float]]]:
    """Begins to measure something from one host to another, and gives what waits for how much it is."""
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


def shared_links(links: Sequence[Link], ring: Sequence[Link]) -> list[str]:
    """A line for each of the `ring` that carries much less while all send than among `links`, alone."""
    alone = {(link.source, link.target): link.bandwidth for link in links}
    return [
        f"{link.source} to {link.target} carries {bandwidth_text(link.bandwidth, 3)} while all hosts send at once, "
        f"{bandwidth_text(alone[link.source, link.target], 3)} alone"
        for link in ring
        if link.bandwidth < _SLOW * alone[link.source, link.target]
    ]


def slow_links(links: Sequence[Link]) -> list[str]:
    """A line for each host that sends or receives much slower than others do, and for each such link of others."""
    if len(links) < 2:
        return []
    usual = _usual(links)
    lines, told = [], set()
    for verb, end in (("sends to", "source"), ("receives from", "target")):
        for host in dict.fromkeys(getattr(link, end) for link in links):
            own = [link for link in links if getattr(link, end) == host]
            if len(own) > 1 and max(link.bandwidth for link in own) < _SLOW * usual:
                most = bandwidth_text(max(link.bandwidth for link in own), 3)
                lines.append(f"{host} {verb} all others at {most} at most; usual is {bandwidth_text(usual, 3)}")
                told |= set(own)
    for link in links:
        if link not in told and link.bandwidth < _SLOW * usual:
            lines.append(
                f"{link.source} to {link.target} carries {bandwidth_text(link.bandwidth, 3)}; usual is "
                f"{bandwidth_text(usual, 3)}"
            )
    return lines


def _usual(links: Sequence[Link]) -> float:
    """What the faster half carry: where one host is slow, most links of three are."""
    rates = sorted(link.bandwidth for link in links)
    return statistics.median(rates[len(rates) // 2 :])
