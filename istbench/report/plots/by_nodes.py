"""Time to each target by number of nodes."""

import math

from istbench.report.groups import Group
from istbench.report.palette import MethodStyle
from istbench.report.plots.plot import Panel, Plot, Series, contender_styles, plot_subtitle, plot_title
from istbench.results.stats import estimate, interval_name


def time_by_nodes(group: Group) -> Plot:
    """Train seconds to each target by number of nodes: a panel for each target, a line for each method.

    x is the place of the number of nodes among those there are, counted from 0.
    """
    styles = contender_styles(group)
    panels = tuple(
        Panel(
            title=f"to {target.of(group.metric)}",
            target=target.short,
            series=tuple(_by_nodes(group, name, style, target.level) for name, style in styles.items()),
        )
        for target in group.targets
    )
    kinds = sorted({interval_name(c.seeds) for c in group.contenders if c.seeds > 1})
    return Plot(
        stem=f"{group.stem}-time-to-target",
        title=plot_title(group),
        subtitle=plot_subtitle(group, f"median, bars: {' or '.join(kinds)}" if kinds else "one seed"),
        kind="points",
        x_label="nodes",
        y_label=f"{group.time_name} to target (s)",
        panels=panels,
        y_scale="log",
        ticks=tuple(str(nodes) for nodes in group.nodes),
    )


def _by_nodes(group: Group, name: str, style: MethodStyle, level: float) -> Series:
    points, missed, extrapolated = [], [], []
    for contender in group.contenders:
        if contender.name != name:
            continue
        place = float(group.nodes.index(contender.nodes))
        if contender.extrapolated_from is not None:
            extrapolated.append(place)
        found = estimate(list(contender.seconds(level).values()))
        if math.isinf(found.median):
            missed.append(place)
        elif found.median > 0:
            points.append((place, found.median, max(found.low, found.median * 1e-3), found.high))
    points.sort()
    x, y, low, high = (tuple(column) for column in zip(*points, strict=True)) if points else ((),) * 4
    return Series(
        label=name, style=style, x=x, y=y, low=low, high=high, missed=tuple(missed),
        extrapolated=tuple(extrapolated),
    )  # fmt: skip
