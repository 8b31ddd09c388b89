"""The picture of the study that `dealing.py` writes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dealing_rows import BANDWIDTHS, Cell, Row, timed

from istbench.cluster.profile import bandwidth_text
from istbench.report.palette import method_styles
from istbench.results.stats import SeedMedian, seed_median

COLOURS = {"ist all": "#D55E00", "ist late": "#661100", "ist other": "#F2A65A"}
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
ACROSS = "ddp"
"""Drawn as lines across."""
RANGE: Mapping[str, Any] = {"color": "black", "linewidth": 1, "marker": "_", "markersize": 5}
SIZES = (12, 8.5, 5.5)
"""Of markers, by bandwidth."""
_MANY_TICKS = 200
"""Bytes of the heaviest row over those of the lightest at which the axis has fewer ticks."""
_LEAST_SPAN = 0.03
"""Of the axis of accuracy: less than a point must not look large."""


def draw(figure: Any, rows: Sequence[Row], levels: Sequence[float], of: str) -> None:
    """Panels: accuracy and seconds downwards, over bytes, for each number of nodes across.

    A level that no row reaches has no panel. The arithmetic is in the table: with it, the picture was too small.
    """
    nodes = sorted({row.cell.nodes for row in rows})
    levels = [level for level in levels if any(any(shown_seconds(row, level)) for row in rows)]
    figure.set_size_inches(2.9 + 3.3 * len(nodes), 0.9 + 2.6 * (1 + len(levels)))
    panels = figure.subplots(1 + len(levels), len(nodes), sharey="row", sharex="col", squeeze=False)
    tops = {level: top_of(rows, level) for level in levels}
    for place, count in enumerate(nodes):
        own = [row for row in rows if row.cell.nodes == count]
        sent = [row.megabytes for row in own if row.megabytes and row.cell.method != ACROSS]
        digits = (1, 2, 3, 5) if sent and max(sent) < _MANY_TICKS * min(sent) else (1, 3)
        column = panels[:, place]
        column[0].set_title(f"{count} nodes", fontsize="large")
        column[-1].set_xlabel("MB a node sends a round", fontsize="large")
        for panel in column:
            panel.set_xscale("log")
            plain_ticks(panel.xaxis, digits)
            panel.tick_params(labelsize="large")
            panel.grid(alpha=0.2)
            panel.spines[["top", "right"]].set_visible(False)
        for row in own:
            draw_row(column, row, levels, tops)
    panels[0, 0].set_ylabel("final accuracy", fontsize="large")
    low, high = panels[0, 0].get_ylim()
    more = max(0.0, _LEAST_SPAN - (high - low)) / 2
    panels[0, 0].set_ylim(low - more, high + more)
    for panel, level in zip(panels[1:, 0], levels, strict=True):
        panel.set_yscale("log")
        plain_ticks(panel.yaxis, (1, 1.5, 2, 3, 4, 5, 7))
        panel.set_ylabel(f"seconds to {level:g}", fontsize="large")
        if math.isfinite(tops[level]):
            panel.set_ylim(top=tops[level])
    figure.legend(handles=handles_of(rows), loc="outside right center", frameon=False, fontsize="large")
    figure.suptitle(f"From IST to local SGD: {of}, replayed".replace(", ", "\n", 1), fontweight="bold")


def shown_seconds(row: Row, level: float) -> list[SeedMedian | None]:
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


def draw_row(column: Sequence[Any], row: Row, levels: Sequence[float], tops: Mapping[float, float]) -> None:
    """The points of a cell over its bytes: its accuracy, and a line through its seconds at each bandwidth."""
    x = row.megabytes
    if x <= 0:
        return
    if row.cell.method == ACROSS:
        draw_across(column, row, levels, tops)
        return
    style = style_of(row.cell)
    column[0].plot([x], [row.final], linestyle="none", markersize=10, **style)
    draw_range(column[0], x, seed_median(row.finals))
    for panel, level in zip(column[1:], levels, strict=True):
        times = shown_seconds(row, level)
        reached = [(time, size) for time, size in zip(times, SIZES, strict=True) if time is not None]
        panel.plot([x] * len(reached), [time.median for time, _ in reached], color=style["color"], linewidth=0.8)
        for time, size in reached:
            panel.plot([x], [time.median], linestyle="none", markersize=size, **style)
            draw_range(panel, x, time)


def draw_across(column: Sequence[Any], row: Row, levels: Sequence[float], tops: Mapping[float, float]) -> None:
    """Lines across for a method that sends far more bytes than the others, whose points would shrink the rest."""
    look = {"color": style_of(row.cell)["color"], "linestyle": "--"}
    column[0].axhline(row.final, linewidth=1.8, **look)
    if all(map(math.isfinite, row.finals)):
        column[0].axhspan(min(row.finals), max(row.finals), color=look["color"], alpha=0.12, linewidth=0)
    for panel, level in zip(column[1:], levels, strict=True):
        for time, bits in zip(shown_seconds(row, level), BANDWIDTHS, strict=True):
            if time is None:
                continue
            above = time.median > tops[level]
            place = tops[level] if above else time.median
            if not above:
                panel.axhline(place, linewidth=1.4, **look)
                if math.isfinite(time.high):
                    panel.axhspan(time.low, time.high, color=look["color"], alpha=0.12, linewidth=0)
            panel.annotate(
                f"{bandwidth_text(bits)}{f': {time.median:.0f} s ↑' if above else ''}", (0.01, place),
                xycoords=("axes fraction", "data"), xytext=(0, -2 if above else 2), textcoords="offset points",
                ha="left", va="top" if above else "bottom", fontsize="medium", color=look["color"],
            )  # fmt: skip


def draw_range(panel: Any, x: float, values: SeedMedian) -> None:
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
    return {
        "color": colour,
        "marker": marker,
        "markerfacecolor": colour if filled else "white",
        "markeredgewidth": 1.8,
    }


def handles_of(rows: Sequence[Row]) -> list[Any]:
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
        *(
            handle(names.get(kind, kind), color=colour_of(kind), marker=kinds[kind])
            if kind != ACROSS
            else Line2D([], [], color=colour_of(kind), linestyle="--", label=f"{kind}, more MB")
            for kind in sorted(kinds)
        ),
        *(handle(shape, marker=MARKERS.get(shape, "p")) for shape in shapes),
        *(
            handle(f"moving {share:g} ({words})", markerfacecolor=fill)
            for share in shares
            for words, fill in [("filled", "0.3") if share == 1 else ("hollow", "white")]
        ),
        *(handle(bandwidth_text(bits), markersize=size) for bits, size in zip(BANDWIDTHS, SIZES, strict=True)),
        *([Line2D([], [], label="range of seeds", **RANGE)] if any(len(row.finals) > 1 for row in rows) else []),
    ]
