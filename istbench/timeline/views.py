"""The views of a timeline's picture, as data: the whole round, and its transfers enlarged where they are short."""

from collections.abc import Sequence
from dataclasses import dataclass

from istbench.timeline.bars import WAYS, Bar, BarKind, Way, activity_bars, merged, transfer_rows
from istbench.timeline.timeline import Timeline, Transfer

_ZOOM_BELOW, _ZOOM_MARGIN = 0.35, 0.12
# Shares of a view: what is shorter is merged with its neighbours, and bars in one row may overlap so much.
_SHORTEST, _OVERLAP = 1 / 1500, 1 / 300
# Of a view, so that a picture can be opened: an SVG has some 200 bytes a bar.
_MOST_BARS = 2000


@dataclass(frozen=True, kw_only=True)
class Lane:
    """What a node did, as bars in order, and its transfers each way, in rows of such bars; cut to the view.

    transfers: empty where no node has any.
    """

    activities: list[Bar]
    transfers: dict[Way, list[list[Bar]]]


@dataclass(frozen=True, kw_only=True)
class View:
    """From `start` to `end` of the round, seconds, a lane a node. Bars shorter than `shortest` were merged."""

    start: float
    end: float
    shortest: float
    lanes: list[Lane]

    @property
    def seconds(self) -> float:
        """How much of the round it shows."""
        return self.end - self.start

    def kinds(self) -> set[BarKind]:
        """What can be seen in it."""
        seconds: dict[BarKind, float] = {}
        for row in (row for lane in self.lanes for row in _rows(lane)):
            for bar in row:
                seconds[bar.kind] = seconds.get(bar.kind, 0.0) + bar.seconds
        return {kind for kind, total in seconds.items() if total >= self.shortest}

    def most_rows(self) -> int:
        """The rows of transfers that a node has one way, at most."""
        return max((len(rows) for lane in self.lanes for rows in lane.transfers.values()), default=0)


def timeline_views(timeline: Timeline) -> list[View]:
    """The whole round and, where that is a small part of it, from the first to the last of its transfers."""
    exchange = _exchange(timeline)
    windows = [(0.0, timeline.seconds)]
    if exchange and exchange[1] - exchange[0] < _ZOOM_BELOW * timeline.seconds:
        windows.append(exchange)
    return [_view(timeline, start, end) for start, end in windows]


def _exchange(timeline: Timeline) -> tuple[float, float] | None:
    """From the first to the last transfer of the round itself, with a margin.

    What late nodes still send of the round before, or early ones already of the next, is left out; None where
    rounds are not apart, because messages of one are under way in another, or there are no transfers.
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
    # What was under way when the first node began is cut to start just there.
    return all(begin < transfer.start <= end for begin, end in limits)


def _view(timeline: Timeline, start: float, end: float) -> View:
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
    while sum(len(row) for lane in lanes for row in _rows(lane)) > _MOST_BARS and shortest < end - start:
        shortest *= 1.5
        lanes = [_merged(lane, shortest) for lane in lanes]
    return View(start=start, end=end, shortest=shortest, lanes=lanes)


def _rows(lane: Lane) -> list[list[Bar]]:
    return [lane.activities, *(row for rows in lane.transfers.values() for row in rows)]


def _merged(lane: Lane, shortest: float) -> Lane:
    return Lane(
        activities=merged(lane.activities, shortest),
        transfers={way: [merged(row, shortest) for row in rows] for way, rows in lane.transfers.items()},
    )


def _cut(bars: Sequence[Bar], start: float, end: float) -> list[Bar]:
    return [
        Bar(start=max(bar.start, start), end=min(bar.end, end), kind=bar.kind)
        for bar in bars
        if bar.start < end and bar.end > start
    ]
