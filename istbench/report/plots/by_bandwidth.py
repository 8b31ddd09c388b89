"""Time to target by bandwidth."""

import math
from collections.abc import Sequence

from istbench.cluster.profile import bandwidth_text
from istbench.report.groups import Sweep
from istbench.report.palette import MethodStyle
from istbench.report.phrases import count_nodes
from istbench.report.plots.plot import (
    BANDWIDTH_LABEL,
    Panel,
    Plot,
    Series,
    contender_styles,
    plot_subtitle,
    plot_title,
)
from istbench.report.targets import Target
from istbench.results.stats import interval_name

_PANELS = 2
# Of a tick, as a share of the axis.
_NAME_WIDTH = 0.3
_DIGITS = 3


def time_by_bandwidth(sweep: Sweep, nodes: int, panels: int = _PANELS) -> Plot:
    """Seconds to the hardest targets that any method reached, by bandwidth in bits/s, a line a method.

    panels: number of targets, at most.
    """
    group = sweep.groups[0]
    styles = contender_styles(group)
    labels = sweep.labels(nodes)
    reached = [
        target
        for target in group.targets
        if any(math.isfinite(at.median) for label in labels for at in sweep.times(label, nodes, target.level))
    ]
    shown = (reached or list(group.targets))[-panels:]
    drawn = tuple(
        Panel(
            title=f"to {target.of(group.metric)}",
            target=target.short,
            series=tuple(
                _series(sweep, label, styles[group.name_of(label)], nodes, target.level) for label in labels
            ),
        )
        for target in shown
    )
    kinds = sorted({interval_name(c.seeds) for c in group.contenders if c.nodes == nodes and c.seeds > 1})
    spread = f"median, bars: {' or '.join(kinds)}" if kinds else "one seed"
    places = _tick_places(sweep.bandwidths)
    return Plot(
        stem=f"{sweep.stem}-by-bandwidth-n{nodes}",
        title=f"{plot_title(group)}, {count_nodes(nodes)}",
        subtitle=f"{plot_subtitle(group, spread, sweep.cluster)}{_not_drawn(sweep, labels, nodes, shown)}",
        kind="points",
        x_label=BANDWIDTH_LABEL,
        y_label=f"{group.time_name} to target (s)",
        panels=drawn,
        x_scale="log",
        y_scale="log",
        ticks=tuple(bandwidth_text(bits, _DIGITS) for bits in places),
        tick_places=places,
    )


def _series(sweep: Sweep, label: str, style: MethodStyle, nodes: int, level: float) -> Series:
    times = list(zip(sweep.bandwidths, sweep.times(label, nodes, level), strict=True))
    there = [(bits, at) for bits, at in times if 0 < at.median < math.inf]
    return Series(
        label=sweep.groups[0].name_of(label),
        style=style,
        x=tuple(bits for bits, _ in there),
        y=tuple(at.median for _, at in there),
        low=tuple(max(at.low, at.median * 1e-3) for _, at in there),
        high=tuple(at.high for _, at in there),
        missed=tuple(bits for bits, at in times if math.isinf(at.median)),
        extrapolated=sweep.bandwidths if sweep.extrapolated(label, nodes) else (),
    )


def _not_drawn(sweep: Sweep, labels: Sequence[str], nodes: int, targets: Sequence[Target]) -> str:
    """A remark on methods that reached a target in 0 s, which a logarithmic axis cannot show."""
    at_once = [
        f"{', '.join(map(sweep.groups[0].name_of, found))} to {target.short}"
        for target in targets
        if (found := [label for label in labels if _takes_no_time(sweep, label, nodes, target.level)])
    ]
    return f"; in 0 s and not drawn: {', '.join(at_once)}" if at_once else ""


def _takes_no_time(sweep: Sweep, label: str, nodes: int, level: float) -> bool:
    return any(at.median == 0 for at in sweep.times(label, nodes, level))


def _tick_places(bandwidths: Sequence[float]) -> tuple[float, ...]:
    """Powers of ten among the bandwidths if there are two, else bandwidths, far enough apart for their names."""
    low, high = math.log10(bandwidths[0]), math.log10(bandwidths[-1])
    decades = [10.0**power for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]
    places: list[float] = []
    for bits in decades if len(decades) > 1 else bandwidths:
        if not places or math.log10(bits / places[-1]) >= _NAME_WIDTH * (high - low):
            places.append(bits)
    return tuple(places)
