"""The uplink or backplane that explains links which carry less together than alone."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from istbench.cluster.profile import bandwidth_text
from istbench.launch.hosts.links import SLOW, HostLink, permutations

_Pair = tuple[str, str]
# A guess must leave at most this share of the error that no guess has.
_EXPLAINS = 0.5


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


def shared_link(links: Sequence[HostLink], together: Sequence[HostLink]) -> SharedLink | None:
    """The backplane or uplinks that best explain `together`.

    None if no round of all hosts at once is much slower than its links alone, or nothing explains it.

    Args:
        links: every link, measured alone. together: the same links by `measure_together`.
    """
    alone = {(link.source, link.target): link.bandwidth for link in links}
    found = {(link.source, link.target): link.bandwidth for link in together}
    hosts = list(dict.fromkeys(link.source for link in links))
    rounds = permutations(hosts)
    if not any(_total(found, pairs) < SLOW * _total(alone, pairs) for pairs in rounds):
        return None
    guesses = [guess for size in (None, *range(2, len(hosts))) for guess in _guess(hosts, size, alone, found)]
    best = min(guesses, key=lambda guess: guess.error, default=None)
    return best if best is not None and best.error < _EXPLAINS * _error(alone, found) else None


def _guess(
    hosts: Sequence[str], rack: int | None, alone: Mapping[_Pair, float], found: Mapping[_Pair, float]
) -> Iterator[SharedLink]:
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


def _route(hosts: Sequence[str], rack: int | None, pair: _Pair) -> list[str]:
    """The shared links between two hosts."""
    if rack is None:
        return ["backplane"]
    source, target = (hosts.index(name) // rack for name in pair)
    return [] if source == target else [f"up {source}", f"down {target}"]


def _fair(
    routes: Mapping[_Pair, Sequence[str]], alone: Mapping[_Pair, float], bandwidth: float
) -> dict[_Pair, float]:
    """Max-min fair rates of all `routes` at once, over links of `bandwidth`, none faster than it is alone."""
    rates: dict[_Pair, float] = {}
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


def _error(predicted: Mapping[_Pair, float], found: Mapping[_Pair, float]) -> float:
    apart = (abs(math.log(max(predicted[pair], 1.0) / max(rate, 1.0))) for pair, rate in found.items())
    return math.expm1(statistics.fmean(apart))


def _total(rates: Mapping[_Pair, float], pairs: Sequence[_Pair]) -> float:
    return sum(rates[pair] for pair in pairs)
