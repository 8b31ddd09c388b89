"""The metric over time."""

from istbench.report.groups import Entry, Group
from istbench.report.palette import Look
from istbench.report.phrases import count_nodes
from istbench.report.plots.of_group import plot_subtitle, plot_title, styles, time_words
from istbench.report.plots.plot import Panel, Plot, Series
from istbench.results.curves import Curve
from istbench.results.stats import median

# Where the slowest takes this many times longer than the fastest, a linear axis hides the fastest.
_LOG_FROM = 6.0


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
        title=plot_title(group),
        subtitle=plot_subtitle(group, "median, band: min–max" if several else "one seed"),
        kind="lines",
        x_label=f"{time_words(group)} (s)",
        y_label=f"test {group.metric}",
        panels=panels,
        x_scale="log" if logarithmic else "linear",
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
