"""Draw a `Timeline` as PNG and SVG: a lane for each node with its activities and its transfers out and in."""

import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from istbench.base.errors import printable
from istbench.report.output.figure import write_figure
from istbench.report.palette import NODE_COLOURS
from istbench.report.timeline.bars import (
    ACTIVITY_NAMES,
    COLLECTIVE_NAME,
    BarKind,
    TimelineBar,
    View,
    bar_colour,
    timeline_views,
)
from istbench.report.timeline.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

_WIDTH_INCHES, _MOST_INCHES = 10.0, 40.0
# Heights in the lane of a node (inches, unless the picture is too high): activities, transfers one way, gaps.
_ACTIVITY, _LEAST_WAY, _ROW, _GAP, _BETWEEN = 0.3, 0.13, 0.05, 0.045, 0.16
# Above these shares of the width of a view, neighbours of one kind are separated, and absence is marked.
_PARTED, _OUTSIDE_SHARE = 1 / 120, 1 / 120
_LEGEND_COLUMNS = 4
_OUTSIDE: dict[str, Any] = {"facecolor": "none", "edgecolor": "0.55", "linewidth": 0.8, "linestyle": ":"}


def draw_timeline(timeline: Timeline, title: str, stem: Path) -> list[Path]:
    """Write `timeline` as `stem`.png and `stem`.svg, over existing files; returns both paths.

    If the transfers take a small part of the round, that part is drawn again, enlarged. Activities of a node
    outside its own round are left out.

    Raises:
        OSError: if they cannot be written.
    """
    return write_figure(lambda figure: _fill(figure, timeline, title), stem)


def _fill(figure: "Figure", timeline: Timeline, title: str) -> None:
    of_what = printable(f"round {timeline.round}, {timeline.where}")
    lines = [*textwrap.wrap(printable(title), int(_WIDTH_INCHES * 8)), of_what]
    figure.suptitle("\n".join(lines), fontsize="large", fontweight="bold")
    shown = timeline_views(timeline)
    way = max(_LEAST_WAY, _ROW * max(view.most_rows() for view in shown)) if timeline.transfers else 0.0
    areas = figure.subplots(1, len(shown), width_ratios=(3, 2)[: len(shown)], squeeze=False)[0]
    for area, view in zip(areas, shown, strict=True):
        _draw_view(area, view, timeline, way)
    if len(shown) > 1:
        _mark_zoom(areas[0], areas[1], shown[1], timeline.unit[0])
    legend = _legend_rows(timeline, {kind for view in shown for kind in view.kinds()})
    # The axis with its label, the title, the legend and where there are two views their titles.
    around = 1.05 + 0.22 * len(lines) + 0.2 * len(legend) + 0.25 * (len(shown) - 1)
    figure.set_size_inches(_WIDTH_INCHES, around + min(_MOST_INCHES, _pitch(way) * timeline.nodes))
    _draw_legend(figure, legend)


def _pitch(way: float) -> float:
    """Distance of two lanes. way: height of the transfers one way, 0 without any."""
    return _ACTIVITY + _BETWEEN + (2 * (way + _GAP) if way else 0.0)


def _mark_zoom(whole: "Axes", enlarged: "Axes", zoom: View, scale: float) -> None:
    whole.axvspan(zoom.start * scale, zoom.end * scale, color="#FFF3C9", zorder=0, linewidth=0)
    whole.set_title("whole round", fontsize="medium")
    enlarged.set_title("its transfers, enlarged", fontsize="medium")
    enlarged.set_facecolor("#FFFBEC")
    enlarged.set_yticks([], minor=True)
    enlarged.set_yticks([])


def _draw_view(area: "Axes", view: View, timeline: Timeline, way: float) -> None:
    scale, unit = timeline.unit
    tops = [node * _pitch(way) for node in range(timeline.nodes)]
    area.set_xlim(view.start * scale, view.end * scale)
    area.set_ylim(timeline.nodes * _pitch(way) - _BETWEEN / 3, -_BETWEEN * 2 / 3)
    area.set_xlabel(f"time in the round ({unit})", fontsize="medium")
    area.set_yticks([top + _ACTIVITY / 2 for top in tops], [f"node {node}" for node in range(timeline.nodes)])
    area.tick_params(axis="y", which="both", length=0)
    area.spines[["top", "right", "left"]].set_visible(False)
    area.grid(axis="x", alpha=0.2)
    area.set_axisbelow(True)
    names: dict[float, str] = {}
    parted = _PARTED * view.seconds
    for node, (lane, top) in enumerate(zip(view.lanes, tops, strict=True)):
        if node:
            area.axhline(top - _BETWEEN / 2, color="0.85", linewidth=0.6)
        _draw_bars(area, lane.activities, (top, _ACTIVITY), scale, parted)
        for start, end in _outside(timeline, node):
            area.broken_barh([(start * scale, (end - start) * scale)], (top, _ACTIVITY), **_OUTSIDE)
        for number, (name, rows) in enumerate(lane.transfers.items()):
            low = top + _ACTIVITY + _GAP + number * (way + _GAP)
            names[low + way / 2] = name
            high = way / max(1, len(rows))
            for place, row in enumerate(rows):
                height = high if len(rows) == 1 else 0.85 * high
                _draw_bars(area, row, (low + place * high, height), scale, parted)
    area.set_yticks(list(names), list(names.values()), minor=True, fontsize="x-small")


def _draw_bars(
    area: "Axes", bars: Sequence[TimelineBar], place: tuple[float, float], scale: float, parted: float
) -> None:
    """Draw the bars of one row at `place` (bottom and height)."""
    by_kind: dict[BarKind, list[tuple[float, float]]] = {}
    for bar in bars:
        by_kind.setdefault(bar.kind, []).append((bar.start * scale, bar.seconds * scale))
    for kind, spans in by_kind.items():
        area.broken_barh(spans, place, **_style(kind))
    gaps = [
        after.start * scale
        for before, after in itertools.pairwise(bars)
        if before.kind == after.kind and min(before.seconds, after.seconds) > parted
    ]
    area.vlines(gaps, place[0], sum(place), color="white", linewidth=0.8)


def _style(kind: BarKind) -> dict[str, Any]:
    hatch = {"hatch": "////", "edgecolor": "0.72"} if kind == "idle" else {}
    return {"facecolor": bar_colour(kind), "linewidth": 0, **hatch}


def _outside(timeline: Timeline, node: int) -> list[tuple[float, float]]:
    """Spans in which `node` was outside the round and another node inside."""
    begin, end = timeline.limits[node]
    shortest = _OUTSIDE_SHARE * timeline.seconds
    return [(a, b) for a, b in ((0.0, begin), (end, timeline.seconds)) if b - a > shortest]


def _legend_rows(timeline: Timeline, seen: set[BarKind]) -> "list[list[Patch]]":
    from matplotlib.patches import Patch

    activities = [Patch(label=label, **_style(kind)) for kind, label in ACTIVITY_NAMES.items() if kind in seen]
    if any(_outside(timeline, node) for node in range(timeline.nodes)):
        activities.append(Patch(label="in another round", **_OUTSIDE))
    transfers = [Patch(label=COLLECTIVE_NAME, **_style(None))] if None in seen else []
    peers = sorted(kind for kind in seen if isinstance(kind, int))
    for place in range(len(NODE_COLOURS)):
        alike = [peer for peer in peers if peer % len(NODE_COLOURS) == place]
        if alike:
            named = ", ".join(map(str, alike[:2])) + (", …" if len(alike) > 2 else "")
            transfers.append(Patch(label=f"to or from node {named}", **_style(alike[0])))
    starts = range(0, len(transfers), _LEGEND_COLUMNS)
    return [activities, *(transfers[start : start + _LEGEND_COLUMNS] for start in starts)]


def _draw_legend(figure: "Figure", rows: "Sequence[Sequence[Patch]]") -> None:
    from matplotlib.patches import Patch

    blank = Patch(alpha=0, label=" ")
    columns = max(map(len, rows))
    # A legend is filled column by column.
    handles = [row[column] if column < len(row) else blank for column in range(columns) for row in rows]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
