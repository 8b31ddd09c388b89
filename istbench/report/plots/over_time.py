"""The metric over time, local steps or traffic."""

from collections.abc import Sequence
from typing import Literal

from istbench.report.groups import Contender, Group
from istbench.report.palette import MethodStyle
from istbench.report.phrases import count_nodes, joined
from istbench.report.plots.plot import Line, Panel, Plot, Scale, Series, contender_styles, plot_subtitle, plot_title
from istbench.results.load import Run
from istbench.results.stats import median

Along = Literal["time", "steps", "traffic"]
"""The horizontal axis of learning curves: seconds on the clock of the runs, local steps, or MB that a node sent."""

# If the slowest takes this many times longer than the fastest, a linear axis hides the fastest.
_LOG_FROM = 6.0
# If a value is this many times larger than the best, a linear axis hides the differences near the best.
_LOG_HEIGHT_FROM = 20.0
# An axis of larger numbers has no ticks in floating point.
_LARGEST_DRAWN = 1e100


def metric_over(group: Group, along: Along = "time") -> Plot:
    """The metric over seconds, or over another axis: a panel for each number of nodes, a line for each method.

    A line is the median over seeds at equal time (steps, MB), its band their minimum to maximum. The line ends with
    the shortest run. Over traffic, rows that send nothing have no line; the subtitle names them. If no row sends
    anything, there is no panel.
    """
    styles = contender_styles(group)
    silent = [row for row in group.contenders if along == "traffic" and not all(_sent(run) for run in row.runs)]
    rows = [row for row in group.contenders if row not in silent]
    ends = [min(_places(run, along)[-1] for run in contender.runs) for contender in rows]
    logarithmic = min(ends, default=0) > 0 and max(ends) >= _LOG_FROM * min(ends)
    drawn = [target for target in group.targets if abs(target.level) <= _LARGEST_DRAWN]
    panels = tuple(
        Panel(
            title=count_nodes(nodes),
            series=tuple(
                _over(contender, along, styles[contender.name], after_start=logarithmic)
                for contender in rows
                if contender.nodes == nodes
            ),
            levels=tuple(target.level for target in drawn),
            level_names=tuple(target.short for target in drawn),
        )
        for nodes in sorted({contender.nodes for contender in rows})
    )
    several = any(len(contender.runs) > 1 for contender in rows)
    spread = "median, and min–max over seeds" if several else "one seed"
    left_out = joined(row.placed for row in silent) if silent else ""
    return Plot(
        stem=f"{group.stem}-over-{along}",
        title=plot_title(group),
        subtitle=plot_subtitle(group, f"{spread}; {left_out} sent nothing" if silent else spread),
        kind="lines",
        x_label=_x_label(group, along),
        y_label=group.metric.axis_on("validation" if group.is_validation else "test"),
        panels=panels,
        x_scale="log" if logarithmic else "linear",
        y_scale=_height_scale(group, panels),
    )


def _height_scale(group: Group, panels: Sequence[Panel]) -> Scale:
    """Logarithmic for positive values that are mostly far above the best, such as a perplexity from its start."""
    heights = [value for panel in panels for series in panel.series for value in (*series.low, *series.high)]
    levels = [level for panel in panels for level in panel.levels]
    best = group.metric.best(heights)
    if best is None or min(*heights, *levels) <= 0:
        return "linear"
    return "log" if max(heights) / best >= _LOG_HEIGHT_FROM else "linear"


def _sent(run: Run) -> int:
    """Bytes that the busiest node of a run sent."""
    return run.curve.evaluations[-1].bytes_sent_per_node


def _x_label(group: Group, along: Along) -> str:
    labels: dict[Along, str] = {"steps": "local steps of a node", "traffic": "sent by the busiest node (MB)"}
    return labels.get(along, f"{group.time_name} (s)")


def _places(run: Run, along: Along) -> Sequence[float]:
    """The place of each evaluation on the horizontal axis."""
    if along == "time":
        return run.curve.seconds
    evaluations = run.curve.evaluations
    return [at.step if along == "steps" else at.bytes_sent_per_node / 1e6 for at in evaluations]


def _over(contender: Contender, along: Along, style: MethodStyle, *, after_start: bool) -> Series:
    curves = [(_places(run, along), run.curve.values) for run in contender.runs]
    end = min(places[-1] for places, _ in curves)
    times = sorted({place for places, _ in curves for place in places if place <= end})
    if after_start:
        times = [time for time in times if time > 0]
    points = []
    found = zip(*(_values_at(seconds, values, times) for seconds, values in curves), strict=True)
    for time, at_once in zip(times, found, strict=True):
        values = [value for value in at_once if value is not None and abs(value) <= _LARGEST_DRAWN]
        # Without one of the seeds the median would jump.
        if len(values) == len(curves):
            points.append((time, median(values), min(values), max(values)))
    x, y, low, high = (tuple(column) for column in zip(*points, strict=True)) if points else ((),) * 4
    extrapolated = () if contender.extrapolated_from is None else x
    seeds = zip(contender.runs, curves, strict=True) if len(curves) > 1 else ()
    each = tuple(_of_seed(run, *curve, after_start=after_start) for run, curve in seeds)
    return Series(
        label=contender.name, style=style, x=x, y=y, low=low, high=high, extrapolated=extrapolated, each=each
    )


def _of_seed(run: Run, places: Sequence[float], values: Sequence[float | None], *, after_start: bool) -> Line:
    points = [
        (place, value)
        for place, value in zip(places, values, strict=True)
        if value is not None and abs(value) <= _LARGEST_DRAWN and (place > 0 or not after_start)
    ]
    return Line(seed=run.header.seed, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))


def _values_at(
    places: Sequence[float], values: Sequence[float | None], wanted: Sequence[float]
) -> list[float | None]:
    """The metric at each of the rising places `wanted`, interpolated linearly; None beside a None.

    The last one of `wanted` is at most the last one of `places`.
    """
    found: list[float | None] = []
    after = 0
    for place in wanted:
        while places[after] < place:
            after += 1
        low, high = values[after - 1], values[after]
        if places[after] == place:
            found.append(high)
        elif after == 0 or low is None or high is None:
            found.append(None)
        else:
            share = (place - places[after - 1]) / (places[after] - places[after - 1])
            found.append((1 - share) * low + share * high)
    return found
