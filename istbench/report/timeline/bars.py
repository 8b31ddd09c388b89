"""The bars of a round by node, with short transfers enlarged: for a picture, and for the page of a report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from istbench.base.errors import UserError
from istbench.cluster.trace_file import load_trace
from istbench.report.groups import Contender, RunGroup
from istbench.report.palette import ACTIVITY_COLOURS, COLLECTIVE_COLOUR, NODE_COLOURS
from istbench.report.plots.plot import Bar, Bars
from istbench.report.timeline.recorded import recorded_round
from istbench.report.timeline.simulated import simulated_round
from istbench.report.timeline.timeline import Timeline, Transfer, typical_round

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
COLLECTIVE_NAME = "collective of all nodes"

_ZOOM_BELOW, _ZOOM_MARGIN = 0.35, 0.12
# Shares of a view: shorter bars are merged with neighbours, and bars in a row may overlap by this much.
_SHORTEST, _OVERLAP = 1 / 1500, 1 / 300
# Bars of a view. More would make the picture too large: an SVG has about 200 bytes for each bar.
_MOST_BARS = 2000


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
        return self.end - self.start


def bar_colour(kind: BarKind) -> str:
    if kind is None:
        return COLLECTIVE_COLOUR
    return ACTIVITY_COLOURS[kind] if isinstance(kind, str) else NODE_COLOURS[kind % len(NODE_COLOURS)]


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


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Activities of a node as bars in order, and its transfers each way in rows of bars, cut to the view.

    transfers: empty if no node has any.
    """

    activities: list[TimelineBar]
    transfers: dict[Way, list[list[TimelineBar]]]


@dataclass(frozen=True, kw_only=True)
class View:
    """The round from `start` to `end` in seconds, a lane for each node. Bars shorter than `shortest` are merged."""

    start: float
    end: float
    shortest: float
    lanes: list[Lane]

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def kinds(self) -> set[BarKind]:
        """The kinds of bars that are long enough to see."""
        seconds: dict[BarKind, float] = {}
        for row in (row for lane in self.lanes for row in _rows(lane)):
            for bar in row:
                seconds[bar.kind] = seconds.get(bar.kind, 0.0) + bar.seconds
        return {kind for kind, total in seconds.items() if total >= self.shortest}

    def most_rows(self) -> int:
        return max((len(rows) for lane in self.lanes for rows in lane.transfers.values()), default=0)


def timeline_views(timeline: Timeline, most_bars: int = _MOST_BARS) -> list[View]:
    """The whole round and, if its transfers take a small part of it, this part, each with about `most_bars`."""
    exchange = _exchange(timeline)
    windows = [(0.0, timeline.seconds)]
    if exchange and exchange[1] - exchange[0] < _ZOOM_BELOW * timeline.seconds:
        windows.append(exchange)
    return [_view(timeline, start, end, most_bars) for start, end in windows]


def _exchange(timeline: Timeline) -> tuple[float, float] | None:
    """The span from the first to the last transfer of this round, with a margin.

    Transfers of the previous round by late nodes, or of the next round by early nodes, are left out. None without
    transfers, or if messages of one round are in transfer during another.
    """
    latest_begin = max(begin for begin, _ in timeline.limits)
    earliest_end = min(end for _, end in timeline.limits)
    own = [transfer for transfer in timeline.transfers if _starts_within(timeline, transfer)]
    others = [transfer for transfer in timeline.transfers if not _starts_within(timeline, transfer)]
    if not own or any(other.end > latest_begin and other.start < earliest_end for other in others):
        return None
    start, end = min(transfer.start for transfer in own), max(transfer.end for transfer in own)
    margin = (end - start) * _ZOOM_MARGIN
    return max(0.0, start - margin), min(timeline.seconds, end + margin)


def _starts_within(timeline: Timeline, transfer: Transfer) -> bool:
    ends = (transfer.source, transfer.source if transfer.target is None else transfer.target)
    limits = [timeline.limits[node] for node in ends]
    # A transfer in progress when the first node began is cut to start at this moment.
    return all(begin < transfer.start <= end for begin, end in limits)


def _view(timeline: Timeline, start: float, end: float, most_bars: int) -> View:
    tolerance = _OVERLAP * (end - start)
    lanes = [
        Lane(
            activities=_cut(activity_bars(timeline, node), start, end),
            transfers={
                way: [_cut(row, start, end) for row in transfer_rows(timeline, node, way, tolerance)]
                for way in (WAYS if timeline.transfers else ())
            },
        )
        for node in range(timeline.nodes)
    ]
    shortest = _SHORTEST * (end - start)
    lanes = [_merged(lane, shortest) for lane in lanes]
    while sum(len(row) for lane in lanes for row in _rows(lane)) > most_bars and shortest < end - start:
        shortest *= 1.5
        lanes = [_merged(lane, shortest) for lane in lanes]
    return View(start=start, end=end, shortest=shortest, lanes=lanes)


def _rows(lane: Lane) -> list[list[TimelineBar]]:
    return [lane.activities, *(row for rows in lane.transfers.values() for row in rows)]


def _merged(lane: Lane, shortest: float) -> Lane:
    return Lane(
        activities=merged(lane.activities, shortest),
        transfers={way: [merged(row, shortest) for row in rows] for way, rows in lane.transfers.items()},
    )


def _cut(bars: Sequence[TimelineBar], start: float, end: float) -> list[TimelineBar]:
    return [
        TimelineBar(start=max(bar.start, start), end=min(bar.end, end), kind=bar.kind)
        for bar in bars
        if bar.start < end and bar.end > start
    ]


# More nodes give no readable chart, and more methods and bars a page too large for a mail.
_MOST_NODES, _MOST_METHODS, _MOST_CHARTED = 8, 12, 300


def round_charts(group: RunGroup) -> list[Bars]:
    """A typical round of each row name of `group`, on its most nodes up to eight, and its transfers enlarged.

    It is as recorded, or replayed on the cluster of `group`. Runs without a sound trace have none, and rows with
    supposed shares.
    """
    shown: dict[str, Contender] = {}
    for contender in group.contenders:
        supposed = any(run.supposed_shares for run in contender.runs)
        if contender.nodes <= _MOST_NODES and contender.extrapolated_from is None and not supposed:
            shown[contender.name] = contender
    return [chart for contender in list(shown.values())[:_MOST_METHODS] for chart in _charts(group, contender)]


def _charts(group: RunGroup, contender: Contender) -> Iterable[Bars]:
    run = contender.runs[0]
    if not run.directory.trace.exists():
        return
    try:
        trace = load_trace(run.directory.trace)
        number = typical_round(trace)
        timeline = (
            recorded_round(trace, number)
            if group.profile is None
            else simulated_round(trace, group.profile, number)
        )
    except UserError:  # the report names this run among its problems
        return
    whole, *enlarged = timeline_views(timeline, _MOST_CHARTED)
    title = f"{contender.placed}, seed {run.header.seed}"
    yield _chart(timeline, whole, f"{group.stem}-{run.header.cell}", title)
    for view in enlarged:
        yield _chart(timeline, view, f"{group.stem}-{run.header.cell}-transfers", f"{title}: transfers, enlarged")


def _chart(timeline: Timeline, view: View, stem: str, title: str) -> Bars:
    scale, unit = timeline.unit
    rows: dict[str, None] = {}
    bars: list[Bar] = []
    kinds: set[BarKind] = set()
    for node, lane in enumerate(view.lanes):
        own = [
            (f"node {node}", [lane.activities]),
            *((f"{node} {way}", each) for way, each in lane.transfers.items()),
        ]
        for row, lines in own:
            rows[row] = None
            for bar in (bar for line in lines for bar in line):
                kinds.add(bar.kind)
                bars.append(Bar(row=row, part=_name(bar.kind), start=bar.start * scale, end=bar.end * scale))
    return Bars(
        stem=stem,
        title=title,
        subtitle=f"round {timeline.round}, {timeline.where}",
        x_label=f"time in the round ({unit})",
        rows=tuple(rows),
        parts=tuple((_name(kind), bar_colour(kind)) for kind in sorted(kinds, key=_order)),
        bars=tuple(bars),
    )


def _order(kind: BarKind) -> tuple[int, int]:
    """Activities first, then transfers by node."""
    if isinstance(kind, str):
        return 0, list(ACTIVITY_NAMES).index(kind)
    return 1, -1 if kind is None else kind


def _name(kind: BarKind) -> str:
    if kind is None:
        return COLLECTIVE_NAME
    return ACTIVITY_NAMES[kind] if isinstance(kind, str) else f"to or from node {kind}"
