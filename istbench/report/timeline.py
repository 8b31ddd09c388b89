"""One round of a run as lanes of spans, as it was recorded or as it replays on a cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from istbench.cluster.profile import ClusterProfile
from istbench.cluster.replay import replay
from istbench.cluster.trace import COMPUTE, KINDS, MARK, POST, ROUND, WAIT, Trace
from istbench.errors import UserError

Kind = Literal["compute", "communication", "idle", "transfer"]
_NOTICED_S = 5e-5  # below, clocks and the record itself
_WARM = 3  # rounds replayed before the one that is shown, so that it is like those after it


@dataclass(frozen=True, kw_only=True)
class Span:
    """What `node` did from `start` to `end`, seconds since the round began; a transfer is in the background.

    Attributes:
        kind: communication is waiting for an operation whose parts are all posted, idle waiting for a part. What is
            recorded does not tell them apart: there all waiting is communication, and idle is the time within
            compute that was not spent on a core, drawn at its end.
        name: the operation. peer: of a transfer between two nodes, where to; else -1. bytes: of a transfer.
    """

    node: int
    kind: Kind
    start: float
    end: float
    name: str
    peer: int = -1
    bytes: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A round of all nodes. origin: "recorded", or the cluster's name. round: from 1. seconds: when it ended."""

    origin: str
    round: int
    nodes: int
    seconds: float
    spans: tuple[Span, ...]

    def total(self, node: int, kind: Kind) -> float:
        """Seconds that `node` spent in spans of `kind`."""
        return sum(span.seconds for span in self.spans if span.node == node and span.kind == kind)


def recorded(trace: Trace, number: int) -> Timeline:
    """Round `number` of the recorded ones, from 1, by the clock of the machine that recorded it.

    Raises:
        UserError: where so many rounds were not recorded.
    """
    _check(trace, number)
    cuts = [_round(events, number) for events in trace.nodes]
    begin = min(_begin(events, first) for events, (first, _) in _zip(trace, cuts))
    spans = [
        span
        for node, (events, (first, last)) in enumerate(_zip(trace, cuts))
        for span in _recorded_spans(events, first, last, node, begin)
    ]
    return _timeline("recorded", number, trace, spans)


def replayed(trace: Trace, profile: ClusterProfile, number: int) -> Timeline:
    """Round `number` of the recorded ones, from 1, on a cluster in its steady state.

    Raises:
        UserError: where so many rounds were not recorded, or the trace cannot be replayed.
    """
    _check(trace, number)
    before = trace.rounds * -(-_WARM // trace.rounds) + number - 1
    done = replay(trace, profile, rounds=before + 1, spans=True)
    ends = done.finish_s[:, done.mark_kind == ROUND]
    begins, stops = ends[:, before - 1], ends[:, before]
    begin = float(begins.min())
    spans = []
    for span in done.spans or ():
        start, end = max(span.start, float(begins[span.node])), min(span.end, float(stops[span.node]))
        if end > start:
            name = "compute" if span.op < 0 else _operation(trace.nodes[span.node], span.op)
            spans.append(
                Span(
                    node=span.node,
                    kind=span.kind,
                    start=start - begin,
                    end=end - begin,
                    name=name,
                    peer=span.peer,
                    bytes=span.bytes,
                )
            )
    return _timeline(profile.name, number, trace, spans)


def _timeline(origin: str, number: int, trace: Trace, spans: Sequence[Span]) -> Timeline:
    seconds = max((span.end for span in spans), default=0.0)
    ordered = tuple(sorted(spans, key=lambda span: (span.node, span.start, span.end, span.kind)))
    return Timeline(origin=origin, round=number, nodes=trace.world_size, seconds=seconds, spans=ordered)


def _check(trace: Trace, number: int) -> None:
    if not 1 <= number <= trace.rounds:
        raise UserError(f"round {number} was not recorded; there are rounds 1 to {trace.rounds}")


def _zip(trace: Trace, cuts: Sequence[tuple[int, int]]) -> Iterator[tuple[NDArray[Any], tuple[int, int]]]:
    return zip(trace.nodes, cuts, strict=True)


def _round(events: NDArray[Any], number: int) -> tuple[int, int]:
    """The events of a round: the first, and one after the last, which marks its end."""
    ends = np.flatnonzero((events["code"] == MARK) & (events["kind"] == ROUND))
    return (int(ends[number - 2]) + 1 if number > 1 else 0), int(ends[number - 1]) + 1


def _begin(events: NDArray[Any], first: int) -> float:
    """When what event number `first` tells of began."""
    return float(events["at"][first - 1] if first else events["at"][0] - events["seconds"][0])


def _operation(events: NDArray[Any], op: int) -> str:
    posts = events[events["code"] == POST]
    return KINDS[int(posts["kind"][op])].replace("_", "-")


def _recorded_spans(events: NDArray[Any], first: int, last: int, node: int, begin: float) -> Iterator[Span]:
    posts = events[events["code"] == POST]
    posted_at: dict[int, float] = {}
    now = _begin(events, first) - begin
    for event in events[first:last]:
        at, op = float(event["at"]) - begin, int(event["op"])
        if event["code"] == COMPUTE:
            busy = min(at, now + float(event["seconds"]))
            yield Span(node=node, kind="compute", start=now, end=busy, name="compute")
            if at - busy > _NOTICED_S:
                yield Span(node=node, kind="idle", start=busy, end=at, name="not on a core")
        elif event["code"] == POST:
            posted_at[op] = at
        elif event["code"] == WAIT:
            name = _operation(events, op)
            yield Span(node=node, kind="communication", start=now, end=at, name=name)
            if op in posted_at and name != "receive":
                yield Span(
                    node=node,
                    kind="transfer",
                    start=posted_at[op],
                    end=at,
                    name=name,
                    peer=int(posts["peer"][op]),
                    bytes=float(posts["bytes"][op]),
                )
        now = at
