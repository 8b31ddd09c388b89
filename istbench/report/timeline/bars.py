"""The bars in the picture of a timeline: activities of each node, and its transfers out and in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from istbench.report.timeline.timeline import Timeline

Way = Literal["out", "in"]
WAYS: tuple[Way, ...] = ("out", "in")
BarKind = str | int | None
ACTIVITY_NAMES = {
    "compute": "compute",
    "stalled": "no core, or evaluating",
    "communication": "exposed communication",
    "idle": "idle, another node is late",
}
"""The activities of a node in words, by kind of bar."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineBar:
    """A bar from `start` to `end`, seconds in the round.

    Attributes:
        kind: kind of an activity, or `stalled` for the part of a compute span without computing. For a transfer,
            the node at its other end, or None for a collective of all nodes.
        merged: whether it stands for several bars that are too short to see.
    """

    start: float
    end: float
    kind: BarKind
    merged: bool = False

    @property
    def seconds(self) -> float:
        """Its seconds."""
        return self.end - self.start


def activity_bars(timeline: Timeline, node: int) -> list[TimelineBar]:
    """Activities of `node` in order. A compute span shows its computing first: the trace has only its sum."""
    bars = []
    for own in timeline.activities:
        if own.node != node:
            continue
        middle = own.start + own.busy_s if own.kind == "compute" else own.end
        bars.append(TimelineBar(start=own.start, end=middle, kind=own.kind))
        if middle < own.end:
            bars.append(TimelineBar(start=middle, end=own.end, kind="stalled"))
    return bars


def transfer_rows(timeline: Timeline, node: int, way: Way, tolerance: float) -> list[list[TimelineBar]]:
    """The transfers of `node` one way, in as few rows as possible. Bars in a row overlap by at most `tolerance` s.

    Overlapping transfers with the same peer share a row, because they take turns on one connection.
    """
    rows: list[list[TimelineBar]] = []
    for transfer in timeline.transfers:
        here, peer = (transfer.source, transfer.target) if way == "out" else (transfer.target, transfer.source)
        if transfer.target is None:
            here, peer = transfer.source, None
        if here == node:
            _place(rows, TimelineBar(start=transfer.start, end=transfer.end, kind=peer), tolerance)
    return rows


def _place(rows: list[list[TimelineBar]], bar: TimelineBar, tolerance: float) -> None:
    """Append `bar`, which starts after all others, to a row. A bar that it overlaps there ends at its start."""
    shared = next((row for row in rows if row[-1].kind == bar.kind and row[-1].end > bar.start), None)
    row = shared or next((row for row in rows if row[-1].end <= bar.start + tolerance), None)
    if row is None:
        rows.append([bar])
        return
    last = row[-1]
    row[-1] = replace(last, end=min(last.end, bar.start))
    row.append(replace(bar, end=max(bar.end, last.end)) if shared else bar)


def merged(bars: Iterable[TimelineBar], shortest: float) -> list[TimelineBar]:
    """`bars` in order. Neighbours shorter than `shortest` seconds and less than that apart are merged.

    A merged bar has the kind that takes most of its time.
    """
    result: list[TimelineBar] = []
    cluster: list[TimelineBar] = []
    for bar in bars:
        long = bar.seconds >= shortest
        if cluster and (long or bar.end - cluster[0].start > shortest):
            _append(result, cluster, shortest)
            cluster = []
        if long:
            result.append(bar)
        else:
            cluster.append(bar)
    if cluster:
        _append(result, cluster, shortest)
    return result


def _append(result: list[TimelineBar], cluster: Sequence[TimelineBar], shortest: float) -> None:
    """Add `cluster` as one bar, or extend the last bar if it is a merged one of the same kind."""
    seconds: dict[BarKind, float] = {}
    for bar in cluster:
        seconds[bar.kind] = seconds.get(bar.kind, 0.0) + bar.seconds
    one = TimelineBar(
        start=cluster[0].start, end=cluster[-1].end, kind=max(seconds, key=lambda kind: seconds[kind]), merged=True
    )
    last = result[-1] if result else None
    if last and last.merged and last.kind == one.kind and one.start - last.end < shortest:
        result[-1] = replace(last, end=one.end)
    else:
        result.append(one)
