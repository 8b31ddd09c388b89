"""The metric over time, local steps or traffic."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from istbench.report.groups import Contender, RunGroup
from istbench.report.palette import MethodStyle
from istbench.report.phrases import count_nodes, joined
from istbench.report.plots.plot import Line, Panel, Plot, Scale, Series, contender_styles, plot_subtitle, plot_title
from istbench.results.load import Run

if TYPE_CHECKING:
    from istbench.cluster.trace import Floats

Along = Literal["time", "steps", "traffic"]
"""The horizontal axis of learning curves: seconds on the clock of the runs, local steps, or MB that a node sent."""

# If the slowest takes this many times longer than the fastest, a linear axis hides the fastest.
_LOG_FROM = 6.0
# If a value is this many times larger than the best, a linear axis hides the differences near the best.
_LOG_HEIGHT_FROM = 20.0
_LABELS: dict[Along, str] = {"steps": "local steps of a node", "traffic": "sent by the busiest node (MB)"}
# An axis of larger numbers has no ticks in floating point.
_LARGEST_DRAWN = 1e100


def metric_over(group: RunGroup, along: Along = "time", most_seeds: int | None = None) -> Plot:
    """The metric over seconds, or over another axis: a panel for each number of nodes, a line for each method.

    A line is the median over seeds at equal time (steps, MB), its band their minimum to maximum. The line ends with
    the shortest run. Over traffic, rows that send nothing have no line; the subtitle names them. If no row sends
    anything, there is no panel.

    most_seeds: runs whose single lines are shown too; of more runs, none is.
    """
    each = most_seeds is None or len(group.runs) <= most_seeds
    styles = contender_styles(group)
    silent = [
        row
        for row in group.contenders
        if along == "traffic" and not all(_places(run, along)[-1] for run in row.runs)
    ]
    rows = [row for row in group.contenders if row not in silent]
    ends = [min(_places(run, along)[-1] for run in contender.runs) for contender in rows]
    logarithmic = min(ends, default=0) > 0 and max(ends) >= _LOG_FROM * min(ends)
    drawn = [target for target in group.targets if abs(target.level) <= _LARGEST_DRAWN]
    panels = tuple(
        Panel(
            title=count_nodes(nodes),
            series=tuple(
                _over(contender, along, styles[contender.name], after_start=logarithmic, each=each)
                for contender in rows
                if contender.nodes == nodes
            ),
            levels=tuple(target.level for target in drawn),
            level_names=tuple(target.short for target in drawn),
        )
        for nodes in sorted({contender.nodes for contender in rows})
    )
    # Samples may be held out of the training data, in place of the test split.
    split = "test" if group.source.before_split is None else "validation"
    several = any(len(contender.runs) > 1 for contender in rows)
    spread = "median, and min–max over seeds" if several else "one seed"
    left_out = joined(row.placed for row in silent) if silent else ""
    return Plot(
        stem=f"{group.stem}-over-{along}",
        title=plot_title(group),
        subtitle=plot_subtitle(group, f"{spread}; {left_out} sent nothing" if silent else spread),
        kind="lines",
        x_label=_LABELS.get(along, f"{group.time_name} (s)"),
        y_label=group.metric.axis_on(split),
        panels=panels,
        x_scale="log" if logarithmic else "linear",
        y_scale=_height_scale(group, panels),
    )


def _height_scale(group: RunGroup, panels: Sequence[Panel]) -> Scale:
    """Logarithmic for positive values that are mostly far above the best, such as a perplexity from its start."""
    heights = [value for panel in panels for series in panel.series for value in (*series.low, *series.high)]
    levels = [level for panel in panels for level in panel.levels]
    best = group.metric.best(heights)
    if best is None or min(*heights, *levels) <= 0:
        return "linear"
    return "log" if max(heights) / best >= _LOG_HEIGHT_FROM else "linear"


def _places(run: Run, along: Along) -> Sequence[float]:
    """The place of each evaluation on the horizontal axis."""
    if along == "time":
        return run.curve.seconds
    evaluations = run.curve.evaluations
    return [at.step if along == "steps" else at.bytes_sent_per_node / 1e6 for at in evaluations]


def _over(contender: Contender, along: Along, style: MethodStyle, *, after_start: bool, each: bool) -> Series:
    import numpy as np  # which a report without pictures need not load

    curves = [_curve(run, along) for run in contender.runs]
    end = min(places[-1] for places, _ in curves)
    x = np.unique(np.concatenate([places for places, _ in curves]))
    x = x[(x <= end) & (x > 0)] if after_start else x[x <= end]
    found = np.array([np.interp(x, places, values, left=np.nan) for places, values in curves])
    # Without one of the seeds the median would jump.
    whole = np.isfinite(found).all(axis=0)
    x, found = x[whole], found[:, whole]
    lines = []
    if each and len(curves) > 1:
        for run, (places, values) in zip(contender.runs, curves, strict=True):
            known = np.isfinite(values) & ((places > 0) | (not after_start))
            lines.append(Line(seed=run.header.seed, x=_floats(places[known]), y=_floats(values[known])))
    return Series(
        label=contender.name,
        style=style,
        x=_floats(x),
        y=_floats(np.median(found, axis=0)),
        low=_floats(found.min(axis=0)),
        high=_floats(found.max(axis=0)),
        extrapolated=() if contender.extrapolated_from is None else _floats(x),
        each=tuple(lines),
    )


def _curve(run: Run, along: Along) -> "tuple[Floats, Floats]":
    """Rising places of evaluations, and the metric there; NaN for no number, or one that is too large to draw."""
    import numpy as np

    places, first = np.unique(np.array(_places(run, along), dtype=float), return_index=True)
    values = np.array(run.curve.values, dtype=float)[first]
    return places, np.where(np.abs(values) <= _LARGEST_DRAWN, values, np.nan)


def _floats(values: "Floats") -> tuple[float, ...]:
    return tuple(values.tolist())
