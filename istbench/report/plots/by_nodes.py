"""Time to each target by number of nodes."""

import math

from istbench.report.groups import Group
from istbench.report.palette import Look
from istbench.report.plots.of_group import plot_subtitle, plot_title, styles, time_words
from istbench.report.plots.plot import Panel, Plot, Series
from istbench.results.stats import estimate, interval_name


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
        title=plot_title(group),
        subtitle=plot_subtitle(group, f"median, bars: {' or '.join(kinds)}" if kinds else "one seed"),
        kind="points",
        x_label="nodes",
        y_label=f"{time_words(group)} to target (s)",
        panels=panels,
        y_scale="log",
        ticks=tuple(str(nodes) for nodes in group.nodes),
    )


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
