"""The bandwidth, the latency and the number of nodes at which another candidate becomes the first."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec

from istbench.base.errors import UserError
from istbench.base.options.texts import Message, Text
from istbench.cluster.profile import ClusterProfile, bandwidth_text
from istbench.cluster.replay_checks import Check
from istbench.studies.advise.draws import replay_error
from istbench.studies.advise.odds import CandidateOdds
from istbench.studies.advise.seconds import seconds_to

_FURTHEST = 100.0  # factors of the bandwidth, up and down
_LONGEST_S, _SHORTEST_S = 1.0, 1e-4  # of a latency
_NODES_FACTOR = 4
_CLOSE, _FINEST = 1.01, 1e-6


class Flip(msgspec.Struct, frozen=True, kw_only=True):
    """The nearest value of one quantity at which another candidate is the first. Only trained ones take part.

    Attributes:
        value: bit/s as `--bandwidth` counts them, seconds, or nodes; None where no other candidate becomes first,
            with the reason.
        side: whether the other is first below or above the value.
        first: label of the other.
        extrapolated: whether nobody trained there: steps to the target are those of the probe, and nobody knows
            whether the candidates fit.
    """

    value: float | None = None
    side: Literal["below", "above", ""] = ""
    first: Text = ""
    reason: Message = ""
    extrapolated: bool = False


class Flips(msgspec.Struct, frozen=True, kw_only=True):
    """Where the answer flips: bandwidth in bit/s, latency in seconds one way, and nodes."""

    bandwidth: Flip
    latency: Flip
    nodes: Flip


_FirstAt = Callable[[float], str]


@dataclass(frozen=True)
class _Rival:
    """A candidate that should reach the target. factor: of its replayed seconds, for its method's mean error."""

    odds: CandidateOdds
    factor: float

    @property
    def label(self) -> str:
        return self.odds.candidate.label


def find_flips(
    ranked: Sequence[CandidateOdds], profile: ClusterProfile, *, checks: Mapping[str, Check] | None = None
) -> Flips:
    """Where the first of `ranked` stops being first, by expected seconds to the target.

    Steps to the target stay as probed: they do not depend on the network, but on other nodes they are extrapolated.
    """
    rivals = [
        _Rival(found, 1 / (1 + replay_error(found.candidate.method, checks or {})[0]))
        for found in ranked
        if math.isfinite(found.steps)
    ]

    def flip(search: Callable[[str, Sequence[_Rival], ClusterProfile], Flip]) -> Flip:
        if not ranked or all(rival.odds is not ranked[0] for rival in rivals):
            return Flip(reason="nobody is expected to reach the target")
        if len(rivals) == 1:
            return Flip(reason="no other trained candidate is expected to reach the target")
        try:
            return search(ranked[0].candidate.label, rivals, profile)
        except UserError as error:
            return Flip(reason=str(error))

    return Flips(bandwidth=flip(_bandwidth), latency=flip(_latency), nodes=flip(_nodes))


@contextmanager
def _naming(rival: _Rival) -> Iterator[None]:
    """Name `rival` in an error inside."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{rival.label}: {error}") from None


def _first(rivals: Iterable[_Rival], profile: ClusterProfile) -> str:
    """The label of the fastest; of equals the likeliest, which stands first."""
    times = []
    for rival in rivals:
        trace = rival.odds.candidate.trace
        assert trace is not None
        with _naming(rival):
            times.append((rival.factor * seconds_to(trace, profile, rival.odds.steps), rival.label))
    return min(times, key=lambda one: one[0])[1]


def _bandwidth(own: str, rivals: Sequence[_Rival], profile: ClusterProfile) -> Flip:
    here = profile.bandwidth_out / profile.payload  # as `--bandwidth` counts
    back = profile.bandwidth_in / profile.bandwidth_out

    @cache
    def first(bits: float) -> str:
        out = bits * profile.payload  # links that hosts share stay, as with `--bandwidth`
        return _first(rivals, dataclasses.replace(profile, bandwidth_out=out, bandwidth_in=out * back))

    steps = [2.0**power for power in range(1, 7)] + [_FURTHEST]
    found = _nearest(first, own, here, [here * step for step in steps], [here / step for step in steps])
    low, high = (bandwidth_text(bits, 3) for bits in (here / _FURTHEST, here * _FURTHEST))
    return found or _none(first(here), own, f"first of the trained candidates from {low} to {high}")


def _latency(own: str, rivals: Sequence[_Rival], profile: ClusterProfile) -> Flip:
    here = profile.latency_s
    first = cache(lambda seconds: _first(rivals, dataclasses.replace(profile, latency_s=seconds)))
    rising = [max(here, _SHORTEST_S / 2) * 2.0**power for power in range(1, 15)]
    above = [*(seconds for seconds in rising if seconds < _LONGEST_S), *([_LONGEST_S] if here < _LONGEST_S else [])]
    found = _nearest(first, own, here, above, [here / 2, here / 4, here / 16, 0.0] if here else [])
    longest = f"{max(here, _LONGEST_S) * 1e3:g} ms"
    return found or _none(first(here), own, f"first of the trained candidates from 0 to {longest}")


def _nodes(own: str, rivals: Sequence[_Rival], profile: ClusterProfile) -> Flip:
    """The nearest number of nodes. Candidates that cannot be dealt to other nodes take no part."""
    here = max(_world(rival) for rival in rivals)
    dealt, left_out = [], []
    for rival in rivals:
        try:
            _on(rival, 2 * here)
            dealt.append(rival)
        except UserError as error:
            left_out.append((rival.label, str(error)))
    if any(label == own for label, _ in left_out):
        return Flip(reason=dict(left_out)[own])
    apart = f"; without {', '.join(label for label, _ in left_out)}" if left_out else ""
    if len(dealt) < 2:
        return Flip(reason=f"no other candidate can be dealt to other nodes{apart}")
    first = cache(lambda count: _first([_on(rival, int(count)) for rival in dealt], profile))
    above = [float(here * step) for step in (2, _NODES_FACTOR)]
    below = [float(count) for count in (here // 2, here // _NODES_FACTOR) if count >= 2]
    found = _nearest(first, own, float(here), above, below, whole=True)
    if found is None:
        low, high = int(min([*below, here])), int(above[-1])
        return _none(
            first(float(here)),
            own,
            f"first of the trained candidates from {low} to {high} nodes{apart}",
            extrapolated=True,
        )
    return msgspec.structs.replace(found, reason=apart.removeprefix("; "), extrapolated=True)


def _world(rival: _Rival) -> int:
    assert rival.odds.candidate.trace is not None
    return rival.odds.candidate.trace.world_size


def _on(rival: _Rival, nodes: int) -> _Rival:
    candidate = rival.odds.candidate
    if nodes == _world(rival) or candidate.nodes is not None:
        return rival
    if candidate.redealt is None:
        raise UserError(f"{candidate.label} cannot be dealt to other nodes")
    with _naming(rival):
        moved = dataclasses.replace(candidate, trace=candidate.redealt(nodes))
    return _Rival(dataclasses.replace(rival.odds, candidate=moved), rival.factor)


def _none(first_here: str, own: str, otherwise: str, *, extrapolated: bool = False) -> Flip:
    if first_here != own:
        return Flip(reason=f"too close: by expected seconds alone, {first_here} is first here already")
    return Flip(reason=f"{own} is {otherwise}", extrapolated=extrapolated)


def _nearest(
    first: _FirstAt,
    own: str,
    here: float,
    above: Sequence[float],
    below: Sequence[float],
    *,
    whole: bool = False,
) -> Flip | None:
    """The nearer of the flips above and below `here`, by ratio; None if `own` stays first, or is not first here."""
    if first(here) != own:
        return None
    sides: tuple[tuple[Literal["above", "below"], Sequence[float]], ...] = (("above", above), ("below", below))
    flips = []
    for side, values in sides:
        kept = here
        for value in values:
            if first(value) != own:
                lost = _bisected(first, own, kept, value, whole=whole)
                flips.append(Flip(value=lost, side=side, first=first(lost)))
                break
            kept = value
    return min(flips, key=lambda flip: _distance(here, flip.value or 0.0), default=None)


def _distance(here: float, value: float) -> float:
    return abs(math.log(max(value, _SHORTEST_S) / max(here, _SHORTEST_S)))


def _bisected(first: _FirstAt, own: str, kept: float, lost: float, *, whole: bool) -> float:
    """The value nearest to `kept`, where `own` is first, at which another is, as at `lost`."""
    while abs(lost - kept) > (1 if whole else max((_CLOSE - 1) * max(lost, kept), _FINEST)):
        between = (kept + lost) / 2 if min(kept, lost) <= 0 else math.sqrt(kept * lost)
        between = round(between) if whole else between
        if between in (kept, lost):
            break
        kept, lost = (between, lost) if first(between) == own else (kept, between)
    return lost
