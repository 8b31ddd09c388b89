"""Links between hosts, each way: measured, and those named that are much slower than the others."""

import secrets
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from istbench.cluster.profile import bandwidth_text
from istbench.launch.ssh.connection import Connection, Lost, Refused, each
from istbench.launch.ssh.group import Unfit, listening

MEASURES_S = 1.0
_SLOW = 0.7  # of what the faster half of the links carry


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
    token, found = secrets.token_hex(32), []
    places = listening(connections, addresses, token)
    try:
        for source in connections:
            for target in connections:
                if source is target:
                    continue
                asked = source.ask("measure", place=places[target.name], token=token, seconds=seconds)
                try:
                    answer = source.answer(asked, 60 + 20 * seconds)
                except (Lost, Refused) as error:
                    raise Unfit([f"{source.name}: sending to {target.name}: {error}"]) from None
                link = Link(source=source.name, target=target.name, **answer)
                found.append(link)
                say(link)
    finally:
        each(connections, lambda connection: connection.do("stop_listening"))
    return found


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
