"""The views in the picture of a timeline, as data: the whole round, and short transfers enlarged."""

from collections.abc import Sequence
from dataclasses import dataclass

from istbench.report.timeline.bars import WAYS, BarKind, TimelineBar, Way, activity_bars, merged, transfer_rows
from istbench.report.timeline.timeline import Timeline, Transfer

_ZOOM_BELOW, _ZOOM_MARGIN = 0.35, 0.12
# Shares of a view: shorter bars are merged with neighbours, and bars in a row may overlap by this much.
_SHORTEST, _OVERLAP = 1 / 1500, 1 / 300
# Bars of a view. More would make the picture too large: an SVG has about 200 bytes for each bar.
_MOST_BARS = 2000


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
        """Length of the view."""
        return self.end - self.start

    def kinds(self) -> set[BarKind]:
        """The kinds of bars that are long enough to see."""
        seconds: dict[BarKind, float] = {}
        for row in (row for lane in self.lanes for row in _rows(lane)):
            for bar in row:
                seconds[bar.kind] = seconds.get(bar.kind, 0.0) + bar.seconds
        return {kind for kind, total in seconds.items() if total >= self.shortest}

    def most_rows(self) -> int:
        """The most rows of transfers one way of any node."""
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
