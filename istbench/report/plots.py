"""Pictures as plain data: panels of series with labelled axes. `draw` makes files of them."""

import math
from dataclasses import dataclass
from typing import Literal

from istbench.report.groups import Entry, Group
from istbench.report.palette import Look, looks
from istbench.report.words import count_nodes, data_name
from istbench.results.curves import Curve
from istbench.results.stats import estimate, interval_name, median

Scale = Literal["linear", "log"]
# Where the slowest takes this many times longer than the fastest, a linear axis hides the fastest.
_LOG_FROM = 6.0


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line, its points in the units of the axes.

    low, high: the band or error bar at each x, equal to y where there is one seed; high may be infinite.
    missed: x at which the target was not reached, which have no y.
    """

    label: str
    look: Look
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    missed: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One set of axes. levels: heights of light horizontal lines."""

    title: str
    series: tuple[Series, ...]
    levels: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Panels side by side on common axes.

    kind: lines with bands, or points with error bars at a few x.
    ticks: names on the x axis of points; tick_places: their x, 0, 1, 2, ... by default.
    """

    title: str
    subtitle: str
    kind: Literal["lines", "points"]
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    ticks: tuple[str, ...] = ()
    tick_places: tuple[float, ...] = ()


def metric_over_time(group: Group) -> Plot:
    """The metric over train seconds: a panel for each number of nodes, a line for each method.

    A line is the median over seeds at equal train time, its band their minimum to maximum; it ends with the
    first seed that ends.
    """
    looks_of = styles(group)
    ends = [min(run.curve.seconds[-1] for run in entry.runs) for entry in group.entries]
    logarithmic = min(ends) > 0 and max(ends) >= _LOG_FROM * min(ends)
    panels = tuple(
        Panel(
            title=count_nodes(nodes),
            series=tuple(
                _over_time(entry, looks_of[entry.label], after_start=logarithmic)
                for entry in group.entries
                if entry.nodes == nodes
            ),
            levels=group.levels,
        )
        for nodes in group.nodes
    )
    several = any(len(entry.runs) > 1 for entry in group.entries)
    return Plot(
        title=_title(group),
        subtitle=_subtitle(group, "median, band: min–max" if several else "one seed"),
        kind="lines",
        x_label=f"{time_words(group)} (s)",
        y_label=f"test {group.metric}",
        panels=panels,
        x_scale="log" if logarithmic else "linear",
    )


def time_by_nodes(group: Group) -> Plot:
    """Train seconds to each target by number of nodes: a panel for each target, a line for each method.

    x is the place of the number of nodes among those there are, counted from 0.
    """
    looks_of = styles(group)
    panels = tuple(
        Panel(
            title=f"to {group.metric} {level:g}",
            series=tuple(_by_nodes(group, label, look, level) for label, look in looks_of.items()),
        )
        for level in group.levels
    )
    kinds = sorted({interval_name(len(entry.runs)) for entry in group.entries if len(entry.runs) > 1})
    return Plot(
        title=_title(group),
        subtitle=_subtitle(group, f"median, bars: {' or '.join(kinds)}" if kinds else "one seed"),
        kind="points",
        x_label="nodes",
        y_label=f"{time_words(group)} to target (s)",
        panels=panels,
        y_scale="log",
        ticks=tuple(str(nodes) for nodes in group.nodes),
    )


def _over_time(entry: Entry, look: Look, *, after_start: bool) -> Series:
    curves = [run.curve for run in entry.runs]
    end = min(curve.seconds[-1] for curve in curves)
    times = sorted({second for curve in curves for second in curve.seconds if second <= end})
    if after_start:
        times = [time for time in times if time > 0]
    points = []
    for time in times:
        values = [value for value in (_value_at(curve, time) for curve in curves) if value is not None]
        # With a seed missing the median would jump to that of the others.
        if len(values) == len(curves):
            points.append((time, median(values), min(values), max(values)))
    x, y, low, high = (tuple(column) for column in zip(*points, strict=True)) if points else ((),) * 4
    return Series(label=entry.label, look=look, x=x, y=y, low=low, high=high)


def _value_at(curve: Curve, time: float) -> float | None:
    """The metric at `time`, linear between evaluations; None next to one that gave no number."""
    seconds, values = curve.seconds, curve.values
    after = next((index for index, second in enumerate(seconds) if second >= time), None)
    if after is None:
        return None
    if seconds[after] == time or after == 0:
        return values[after] if seconds[after] == time else None
    low, high = values[after - 1], values[after]
    if low is None or high is None:
        return None
    return low + (time - seconds[after - 1]) / (seconds[after] - seconds[after - 1]) * (high - low)


def _by_nodes(group: Group, label: str, look: Look, level: float) -> Series:
    points, missed = [], []
    for entry in group.entries:
        if entry.label != label:
            continue
        place = float(group.nodes.index(entry.nodes))
        found = estimate(list(entry.seconds(level).values()))
        if math.isinf(found.median):
            missed.append(place)
        elif found.median > 0:
            points.append((place, found.median, max(found.low, found.median * 1e-3), found.high))
    points.sort()
    x, y, low, high = (tuple(column) for column in zip(*points, strict=True)) if points else ((),) * 4
    return Series(label=label, look=look, x=x, y=y, low=low, high=high, missed=tuple(missed))


def styles(group: Group) -> dict[str, Look]:
    """The look of each label in the pictures of `group`."""
    return looks(sorted({(entry.method, entry.label) for entry in group.entries}))


def time_words(group: Group) -> str:
    """What the seconds of `group` are, for an axis."""
    return "replayed time" if group.clock == "cluster_s" else "train time"


def _title(group: Group) -> str:
    return f"{group.workload_label}, {data_name(group.data)}"


def _subtitle(group: Group, spread: str) -> str:
    return f"{group.budget}, batch size {group.batch_size} a node, on {group.machine}; {spread}"
