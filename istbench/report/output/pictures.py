"""Plots as PNG and SVG."""

import math
import textwrap
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from istbench.base.errors import printable
from istbench.report.output.figure import write_figures
from istbench.report.plots.plot import BAND_FROM, Panel, Plot, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_ACROSS = 3
_PANEL_INCHES = (3.3, 2.9)
_AXIS_POINTS = 72 * 2.2  # height of an axis, about
_NAME_POINTS = 7.5  # from the name of a level to the next
_EDGE = 1.5  # points, of a marker
_LEGEND_CHARACTERS = 26
_CHARACTER_INCHES, _LINE_INCHES = 0.09, 0.23  # of the legend


def draw_plots(plots: Iterable[Plot], directory: Path) -> list[Path]:
    """Write each of `plots` into `directory` as PNG and SVG, over existing files; returns the paths.

    Raises:
        UserError: if they cannot be written.
    """
    return write_figures(((plot.stem, plot, partial(_fill, plot)) for plot in plots), directory)


def _fill(plot: Plot, figure: "Figure") -> None:
    labels = {series.label: series for panel in plot.panels for series in panel.series}
    across = 2 if len(plot.panels) == 4 else min(_ACROSS, len(plot.panels))
    down = math.ceil(len(plot.panels) / across)
    names = {label: textwrap.fill(printable(label), _LEGEND_CHARACTERS) for label in labels}
    wide = max(len(line) for name in names.values() for line in name.splitlines())
    lines = sum(name.count("\n") + 1 for name in names.values()) + plot.has_extrapolated
    width = max(5.6, 0.9 + _PANEL_INCHES[0] * across + 0.7 + _CHARACTER_INCHES * wide)
    subtitle = textwrap.fill(printable(plot.subtitle), int(width * 12))
    height = max(0.9 + _PANEL_INCHES[1] * down, 1.0 + _LINE_INCHES * lines)
    figure.set_size_inches(width, height + _LINE_INCHES * (subtitle.count("\n") + 1))
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flatten()
    for index, (panel, area) in enumerate(zip(plot.panels, axes, strict=False)):
        if plot.kind == "points":
            area.set_ylim(*plot.seconds_limits())
        _draw_panel(area, panel, plot)
        if plot.has_missed:
            _draw_missed_band(area, named=(index + 1) % across == 0 or index + 1 == len(plot.panels))
    if plot.kind == "points" and not plot.heights:
        # Without any seconds a scale would be invented.
        axes[0].set_yticks([])
        axes[0].yaxis.minorticks_off()
    for panel, area in zip(plot.panels, axes, strict=False):
        _name_levels(area, panel)
    for spare in axes[len(plot.panels) :]:
        spare.remove()
    for index in range(len(plot.panels)):
        lowest = index + across >= len(plot.panels)
        axes[index].tick_params(labelbottom=lowest)
        axes[index].set_ylabel("" if index % across else printable(plot.y_label), fontsize="medium")
        axes[index].set_xlabel(plot.x_label if lowest else "", fontsize="medium")
    title = textwrap.fill(printable(plot.title), int(width * 8))
    figure.suptitle(title, fontsize="large", fontweight="bold")
    figure.supxlabel(subtitle, fontsize="small")
    _legend(figure, labels, names, plot)


def _legend(figure: "Figure", labels: Mapping[str, Series], names: Mapping[str, str], plot: Plot) -> None:
    """The legend beside the panels: below them it would take more room than they do."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], color=series.style.colour, linestyle=series.style.line, linewidth=2,
            marker=series.style.marker, markersize=6,
            label=names[label],
        )
        for label, series in labels.items()
    ]  # fmt: skip
    if plot.has_extrapolated:
        handles.append(
            Line2D(
                [], [], linestyle="none", marker="o", markersize=6, markerfacecolor="white", markeredgecolor="0.35",
                markeredgewidth=_EDGE, label="extrapolated",
            )
        )  # fmt: skip
    figure.legend(handles=handles, loc="outside right center", frameon=False, handlelength=2.6)


def _face(series: Series, x: float) -> str:
    """The fill of the marker at `x`: white if that number of nodes was never run."""
    return "white" if x in series.extrapolated else series.style.colour


def _draw_panel(area: "Axes", panel: Panel, plot: Plot) -> None:
    area.set_title(printable(panel.title), fontsize="medium")
    area.set_xscale(plot.x_scale)
    area.set_yscale(plot.y_scale)
    for axis, scale in ((area.xaxis, plot.x_scale), (area.yaxis, plot.y_scale)):
        if scale == "log":
            _plain_ticks(axis)
    area.grid(alpha=0.2)
    area.spines[["top", "right"]].set_visible(False)
    for level in panel.levels:
        area.axhline(level, color="0.65", linewidth=0.9, linestyle=(0, (5, 4)), zorder=1)
    for series in panel.series:
        if plot.kind == "lines":
            _draw_line(area, series)
        else:
            _draw_points(area, series, plot)
    if plot.kind == "points":
        _mark_places(area, plot)


def _name_levels(area: "Axes", panel: Panel) -> None:
    """Write names right of the level lines without overlap. The limits of the axis must be final."""
    lowest = -math.inf
    for level, name in sorted(zip(panel.levels, panel.level_names, strict=True)):
        place = float(area.transLimits.transform(area.transScale.transform((1.0, level)))[1]) * _AXIS_POINTS
        lowest = max(place, lowest + _NAME_POINTS)
        area.annotate(
            name, (1.0, level), xycoords=("axes fraction", "data"), xytext=(2, lowest - place),
            textcoords="offset points", ha="left", va="center", fontsize="x-small", color="0.35",
        )  # fmt: skip


def _mark_places(area: "Axes", plot: Plot) -> None:
    if plot.x_scale == "linear":
        area.set_xticks(plot.tick_places or range(len(plot.ticks)), plot.ticks)
    else:
        area.set_xticks(plot.tick_places, plot.ticks, fontsize="small")
        area.xaxis.minorticks_off()
    area.set_xlim(*plot.place_limits())


def _plain_ticks(axis: "Axis") -> None:
    """Ticks of a logarithmic axis as plain numbers, at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _draw_line(area: "Axes", series: Series) -> None:
    style, marked = series.style, series.marked
    area.plot(
        series.x, series.y, color=style.colour, linestyle=style.line, linewidth=2, marker=style.marker,
        markersize=5, markevery=(marked.start, marked.step), markeredgewidth=_EDGE,
        markerfacecolor=_face(series, series.x[0]) if series.x else style.colour,
    )  # fmt: skip
    if series.low != series.high:
        area.fill_between(series.x, series.low, series.high, color=style.colour, alpha=0.18, linewidth=0)


def _draw_points(area: "Axes", series: Series, plot: Plot) -> None:
    style = series.style
    places = [plot.place(series.label, x) for x in series.x]
    area.plot(places, series.y, color=style.colour, linestyle=style.line, linewidth=1.4)
    for place, low, high in zip(places, series.low, series.high, strict=True):
        if low != high:
            _draw_error_bar(area, place, low, high, style.colour)
    marker: dict[str, Any] = {
        "linestyle": "none", "marker": style.marker, "markersize": 7, "markeredgecolor": style.colour,
        "markeredgewidth": _EDGE,
    }  # fmt: skip
    for x, place, y in zip(series.x, places, series.y, strict=True):
        area.plot([place], [y], markerfacecolor=_face(series, x), **marker)
    across = area.get_xaxis_transform()
    for x in series.missed:
        place = plot.place(series.label, x, series.missed)
        area.plot([place], [(1 + BAND_FROM) / 2], transform=across, markerfacecolor=_face(series, x), **marker)


def _draw_error_bar(area: "Axes", place: float, low: float, high: float, colour: str) -> None:
    """Draw a bar from `low` to `high`. If `high` is infinite, the bar leaves the axes and has an arrow head."""
    shown = high if math.isfinite(high) else area.get_ylim()[1]
    area.vlines(place, low, shown, color=colour, linewidth=1.4)
    ends = [low, high] if math.isfinite(high) else [low]
    area.plot([place] * len(ends), ends, color=colour, marker="_", markersize=7, linestyle="none")
    if math.isinf(high):
        area.plot([place], [0.985], transform=area.get_xaxis_transform(), color=colour, marker=6, markersize=6)


def _draw_missed_band(area: "Axes", named: bool) -> None:
    """Draw the strip at the top that marks missed targets."""
    from matplotlib.patches import Rectangle

    # The strip has no scale: its markers stand for no number of seconds.
    low, high = area.get_ylim()
    top = low * (high / low) ** BAND_FROM
    area.set_yticks([tick for tick in area.get_yticks() if low <= tick < top])
    area.set_ylim(low, high)
    area.minorticks_off()
    corner = (0.0, BAND_FROM)
    area.add_patch(Rectangle(corner, 1, 1 - BAND_FROM, transform=area.transAxes, facecolor="0.93", zorder=0))
    if named:
        area.annotate(
            "not\nreached", (1.0, (1 + BAND_FROM) / 2), xycoords="axes fraction", xytext=(3, 0),
            textcoords="offset points", ha="left", va="center", fontsize="x-small", color="0.35",
        )  # fmt: skip
