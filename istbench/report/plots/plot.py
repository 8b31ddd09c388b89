"""Plots as plain data: panels of series with labelled axes, or rows of bars. Every output draws the same data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from istbench.report.groups import RunGroup
from istbench.report.palette import MethodStyle, method_styles
from istbench.report.phrases import is_lower_bound
from istbench.results.stats import SeedMedian

Scale = Literal["linear", "log"]


BAND_FROM = 0.88
"""Share of an axis of seconds above which is the strip of missed targets."""

BANDWIDTH_LABEL = "bandwidth of a node's link"
"""The name of an axis of bandwidths."""

OF_FAULTS = "-faults"
"""The end of the stems of plots of runs with faults."""

_DODGE = 0.18


@dataclass(frozen=True, kw_only=True)
class Line:
    """The points of one seed in the units of the axes."""

    seed: int
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line, its points in the units of the axes.

    low, high: band or error bar at each x, equal to y for one seed; high may be infinite.
    missed: each x at which the target was missed. It has no y.
    extrapolated: each of `x` and `missed` whose number of nodes was never run.
    each: the line of each seed, whose median this is; none for one seed.
    """

    label: str
    style: MethodStyle
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    missed: tuple[float, ...] = ()
    extrapolated: tuple[float, ...] = ()
    each: tuple[Line, ...] = ()

    @property
    def marked(self) -> range:
        """Places in `x` that get a marker, where the points are too many."""
        count = len(self.x)
        # A curve of one point is nothing but its marker.
        return range(max(1, count // 8) if count > 1 else 0, count, max(1, count // 6))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One set of axes.

    levels: heights of light horizontal lines. level_names: their labels. target: short name of the target of all
    heights, if there is one.
    """

    title: str
    series: tuple[Series, ...]
    levels: tuple[float, ...] = ()
    level_names: tuple[str, ...] = ()
    target: str = ""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Panels side by side on common axes.

    stem: file name of this plot alone, without its ending, safe on every system.
    kind: lines with bands, or points with error bars at a few x.
    ticks: labels on the x axis of points. tick_places: their x, by default 0, 1, 2, ...
    """

    stem: str
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

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(series.label for panel in self.panels for series in panel.series))

    @property
    def has_missed(self) -> bool:
        """Whether a series missed its target somewhere, so that the axes need a strip for it."""
        return any(series.missed for panel in self.panels for series in panel.series)

    @property
    def has_extrapolated(self) -> bool:
        """Whether a point stands for nodes that were never run."""
        return any(series.extrapolated for panel in self.panels for series in panel.series)

    @property
    def heights(self) -> list[float]:
        """All finite heights of points and bars."""
        return [
            height
            for panel in self.panels
            for series in panel.series
            for height in (*series.low, *series.y, *series.high)
            if math.isfinite(height)
        ]

    def seconds_limits(self) -> tuple[float, float]:
        """Limits of a logarithmic axis that show all finite points, below the strip of missed ones."""
        heights = self.heights
        low, high = (min(heights), max(heights)) if heights else (1.0, 10.0)
        span = max(math.log10(high / low), 0.3)
        room = span * (0.08 + (1 / BAND_FROM - 1) * 1.1 * self.has_missed)
        return low / 10 ** (0.08 * span), high * 10**room

    def place_limits(self) -> tuple[float, float]:
        if self.x_scale == "linear":
            return -0.5, len(self.ticks) - 0.5
        drawn = [x for panel in self.panels for series in panel.series for x in (*series.x, *series.missed)]
        places = drawn or self.tick_places
        room = (max(places) / min(places)) ** 0.12
        return min(places) / room, max(places) * room

    def place(self, label: str, x: float, missed: tuple[float, ...] = ()) -> float:
        """The place of a point of `label` at `x`, apart from those of other labels.

        missed: all x at which the label missed its target, if this is one of them. On a logarithmic axis only
        these points move, so that crossings stay exact.
        """
        labels = self.labels
        shift = min(_DODGE, 0.66 / len(labels)) * (labels.index(label) - (len(labels) - 1) / 2)
        if self.x_scale == "linear":
            return x + shift
        return x * (max(missed) / min(missed)) ** (shift / 8) if missed else x


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of a `row` from `start` to `end`, in the unit of the axis. text: written on it."""

    row: str
    part: str
    start: float
    end: float
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Rows of bars on one axis. rows: from the top. parts: (name, RGB in hex) of each kind of bar."""

    stem: str
    title: str
    subtitle: str
    x_label: str
    rows: tuple[str, ...]
    parts: tuple[tuple[str, str], ...]
    bars: tuple[Bar, ...]


def series_of(
    label: str, style: MethodStyle, medians: Sequence[tuple[float, SeedMedian]], extrapolated: Sequence[float] = ()
) -> Series:
    """The line of one row through its `medians` at rising x. A logarithmic axis cannot show 0."""
    there = [(x, at) for x, at in medians if 0 < at.median < math.inf]
    return Series(
        label=label,
        style=style,
        x=tuple(x for x, _ in there),
        y=tuple(at.median for _, at in there),
        low=tuple(max(at.low, at.median * 1e-3) for _, at in there),
        high=tuple(at.high for _, at in there),
        missed=tuple(x for x, at in medians if math.isinf(at.median)),
        extrapolated=tuple(extrapolated),
    )


def contender_styles(group: RunGroup) -> dict[str, MethodStyle]:
    return method_styles(sorted({(contender.method, contender.name) for contender in group.contenders}))


def plot_title(group: RunGroup) -> str:
    """The workload, its data, and the share of the data that the runs saw."""
    return f"{group.workload_label}, {group.source.seen}"


def plot_subtitle(group: RunGroup, spread: str, machine: str = "") -> str:
    """The budget, the batch size, the machine (`machine` or the group's), and the meaning of lines and bars."""
    bound = ", seconds at best" if is_lower_bound(group.device, group.profile) else ""
    shared = f", {' '.join(group.shared)} throughout" if group.shared else ""
    where = machine or group.machine
    return f"{group.budget}, {group.batch_words}{shared}, on {where}{bound}; {spread}"
