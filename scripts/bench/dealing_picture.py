"""The picture of the study that `dealing.py` writes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dealing_rows import BANDWIDTHS, Cell, Row, timed

from istbench.cluster.profile import bandwidth_text
from istbench.report.palette import method_styles
from istbench.results.stats import Estimate, estimate

COLOURS = {"ist all": "#D55E00", "ist late": "#7F2704", "ist other": "#FDAE6B"}
"""Of forms of `ist`: one hue in three strengths. Other methods have their colour of every report."""
MARKERS = {
    "coverage 1": "o",
    "coverage 2": "s",
    "coverage 3": "v",
    "coverage 4": "D",
    "warm-up": "P",
    "widened": "X",
}
BASELINE = "*"
RANGE: Mapping[str, Any] = {"color": "black", "linewidth": 1, "marker": "_", "markersize": 5}
SIZES = (10, 7, 4.5)
"""Of markers, by bandwidth."""
_MANY_TICKS = 200
"""Bytes of the heaviest row over those of the lightest at which the axis has fewer ticks."""
_LEAST_SPAN = 0.03
"""Of the axis of accuracy: less than a point must not look large."""


def draw(figure: Any, rows: Sequence[Row], levels: Sequence[float], of: str) -> None:
    """Panels: accuracy and seconds downwards; bytes and arithmetic across, for each number of nodes.

    A level that no row reaches has no panel.
    """
    nodes = sorted({row.cell.nodes for row in rows})
    levels = [level for level in levels if any(any(shown_seconds(row, level)) for row in rows)]
    figure.set_size_inches(1 + 3.4 * 2 * len(nodes), 1.6 + 3.2 * (1 + len(levels)))
    panels = figure.subplots(1 + len(levels), 2 * len(nodes), sharey="row", sharex="col", squeeze=False)
    tops = {level: top_of(rows, level) for level in levels}
    for place, count in enumerate(nodes):
        own = [row for row in rows if row.cell.nodes == count]
        sent = [row.megabytes for row in own if row.megabytes]
        digits = (1, 2, 3, 5) if sent and max(sent) < _MANY_TICKS * min(sent) else (1, 3)
        for side, what in enumerate(("MB a node sends a round", "GFLOP of a local step")):
            column = panels[:, 2 * place + side]
            column[0].set_title(f"{count} nodes", fontsize="medium")
            column[-1].set_xlabel(what, fontsize="medium")
            for panel in column:
                if side == 0:
                    panel.set_xscale("log")
                    plain_ticks(panel.xaxis, digits)
                panel.grid(alpha=0.2)
                panel.spines[["top", "right"]].set_visible(False)
            for row in own:
                x = row.megabytes if side == 0 else row.operations and row.operations / 1e9
                draw_row(column, row, x, levels, tops)
    panels[0, 0].set_ylabel("final accuracy", fontsize="medium")
    low, high = panels[0, 0].get_ylim()
    more = max(0.0, _LEAST_SPAN - (high - low)) / 2
    panels[0, 0].set_ylim(low - more, high + more)
    for panel, level in zip(panels[1:, 0], levels, strict=True):
        panel.set_yscale("log")
        plain_ticks(panel.yaxis, (1, 1.5, 2, 3, 4, 5, 7))
        panel.set_ylabel(f"replayed seconds to {level:g}", fontsize="medium")
        if math.isfinite(tops[level]):
            panel.set_ylim(top=tops[level])
    figure.legend(handles=handles_of(rows), loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    figure.suptitle(f"From IST to local SGD: {of}", fontweight="bold")


def shown_seconds(row: Row, level: float) -> list[Estimate | None]:
    """The seconds to `level` at each of `BANDWIDTHS`; None where the picture has no point."""
    times = [row.time((level, bits)) for bits in BANDWIDTHS] if timed([row]) else [None] * len(BANDWIDTHS)
    return [time if time is not None and math.isfinite(time.median) else None for time in times]


def top_of(rows: Sequence[Row], level: float) -> float:
    """The top of the axis of seconds to `level`: ddp on slow links lies above. Infinite without other rows."""
    shown = [time for row in rows if row.cell.method != "ddp" for time in shown_seconds(row, level)]
    return 1.5 * max((time.median for time in shown if time is not None), default=math.inf)


def plain_ticks(axis: Any, digits: Sequence[float]) -> None:
    """Ticks of a logarithmic `axis` as plain numbers: the powers of ten times `digits`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def draw_row(
    column: Sequence[Any], row: Row, x: float | None, levels: Sequence[float], tops: Mapping[float, float]
) -> None:
    """The points of a cell at `x`: its accuracy, and a line through its seconds at each bandwidth."""
    if x is None or x <= 0:
        return
    style = style_of(row.cell)
    column[0].plot([x], [row.final], linestyle="none", markersize=8, **style)
    draw_range(column[0], x, estimate(row.finals))
    for panel, level in zip(column[1:], levels, strict=True):
        times = shown_seconds(row, level)
        reached = [(time, size) for time, size in zip(times, SIZES, strict=True) if time is not None]
        panel.plot([x] * len(reached), [time.median for time, _ in reached], color=style["color"], linewidth=0.8)
        for time, size in reached:
            panel.plot([x], [time.median], linestyle="none", markersize=size, **style)
            draw_range(panel, x, time)
        slowest = times[0]
        if slowest is not None and slowest.median > tops[level]:
            panel.annotate(
                f"↑{slowest.median:.0f}", (x, tops[level]), xytext=(-4, -2), textcoords="offset points",
                ha="right", va="top", fontsize="small", color=style["color"],
            )  # fmt: skip


def draw_range(panel: Any, x: float, values: Estimate) -> None:
    """A bar with two ends over the range of several seeds, on top of their marker; none if a seed has no number."""
    ends = [values.low, values.high]
    if values.seeds > 1 and all(map(math.isfinite, ends)):
        panel.plot([x, x], ends, zorder=3, **RANGE)


def kind_of_colour(cell: Cell) -> str:
    """The name of a colour: a form of `ist`, or another method."""
    if cell.method != "ist":
        return cell.method
    return f"ist {cell.deal}" if cell.deal in ("all", "late") else "ist other"


def colour_of(kind: str) -> str:
    """The colour of a form of `ist`, or that of another method in every report."""
    return COLOURS.get(kind) or method_styles([(kind, kind)])[kind].colour


def shape_of(cell: Cell) -> str:
    """The name of a marker."""
    if cell.widen > 1:
        return "widened"
    return "warm-up" if cell.warmup_rounds else f"coverage {cell.coverage}"


def style_of(cell: Cell) -> dict[str, Any]:
    """Colour by what is dealt, filled if all units are dealt again in each round."""
    colour = colour_of(kind_of_colour(cell))
    filled = cell.moving == 1
    marker = MARKERS.get(shape_of(cell), "p") if cell.of_ist else BASELINE
    return {"color": colour, "marker": marker, "markerfacecolor": colour if filled else "white"}


def handles_of(rows: Sequence[Row]) -> list[Any]:
    """The legend."""
    from matplotlib.lines import Line2D

    def handle(label: str, **style: Any) -> Any:
        return Line2D([], [], linestyle="none", label=label, **{"color": "0.3", "marker": "o", **style})

    kinds = {kind_of_colour(row.cell): "o" if row.cell.of_ist else BASELINE for row in rows}
    shapes = sorted({shape_of(row.cell) for row in rows if row.cell.of_ist})
    shares = sorted({row.cell.moving for row in rows if row.cell.of_ist}, reverse=True)
    names = {
        "ist all": "ist, all units dealt",
        "ist late": "ist, late layers dealt",
        "ist other": "ist, named layers",
    }
    return [
        *(handle(names.get(kind, kind), color=colour_of(kind), marker=kinds[kind]) for kind in sorted(kinds)),
        *(handle(shape, marker=MARKERS.get(shape, "p")) for shape in shapes),
        *(
            handle(f"moving {share:g} ({words})", markerfacecolor=fill)
            for share in shares
            for words, fill in [("filled", "0.3") if share == 1 else ("hollow", "white")]
        ),
        *(handle(bandwidth_text(bits), markersize=size) for bits, size in zip(BANDWIDTHS, SIZES, strict=True)),
        *([Line2D([], [], label="range of seeds", **RANGE)] if any(len(row.finals) > 1 for row in rows) else []),
    ]
