"""Time to targets, by number of nodes or by bandwidth."""

import math
from collections.abc import Iterable, Mapping, Sequence

from istbench.cluster.profile import bandwidth_text
from istbench.report.groups import Contender, RunGroup, Sweep
from istbench.report.phrases import count_nodes, interval_names
from istbench.report.plots.plot import (
    BANDWIDTH_LABEL,
    Panel,
    Plot,
    Series,
    contender_styles,
    plot_subtitle,
    plot_title,
    series_of,
)
from istbench.report.targets import Target

_PANELS = 2
# Of a tick, as a share of the axis.
_NAME_WIDTH = 0.3
_DIGITS = 3


def time_by_nodes(group: RunGroup) -> Plot:
    """Train seconds to each target by number of nodes: a panel for each target, a line for each method.

    x is the place of the number of nodes among those there are, counted from 0.
    """
    rows = {
        name: [(float(group.nodes.index(row.nodes)), row) for row in group.contenders if row.name == name]
        for name in contender_styles(group)
    }
    return Plot(
        stem=f"{group.stem}-time-to-target",
        title=plot_title(group),
        subtitle=plot_subtitle(group, _spread(group.contenders)),
        kind="points",
        x_label="nodes",
        y_label=f"{group.time_name} to target (s)",
        panels=_panels(group, group.targets, rows),
        y_scale="log",
        ticks=tuple(str(nodes) for nodes in group.nodes),
    )


def time_by_bandwidth(sweep: Sweep, nodes: int, panels: int = _PANELS) -> Plot:
    """Seconds to the hardest targets that any method reached, by bandwidth in bits/s, a line a method.

    panels: number of targets, at most.
    """
    group = sweep.groups[0]
    rows = sweep.rows(nodes)
    reached = [
        target
        for target in group.targets
        if any(math.isfinite(there.time(target.level).median) for row in rows for there in row)
    ]
    shown = (reached or list(group.targets))[-panels:]
    spread = _spread(row[0] for row in rows)
    places = _tick_places(sweep.bandwidths)
    return Plot(
        stem=f"{sweep.stem}-by-bandwidth-n{nodes}",
        title=f"{plot_title(group)}, {count_nodes(nodes)}",
        subtitle=f"{plot_subtitle(group, spread, sweep.cluster)}{_not_drawn(rows, shown)}",
        kind="points",
        x_label=BANDWIDTH_LABEL,
        y_label=f"{group.time_name} to target (s)",
        panels=_panels(group, shown, {row[0].name: list(zip(sweep.bandwidths, row, strict=True)) for row in rows}),
        x_scale="log",
        y_scale="log",
        ticks=tuple(bandwidth_text(bits, _DIGITS) for bits in places),
        tick_places=places,
    )


def _spread(rows: Iterable[Contender]) -> str:
    kinds = interval_names(row.seeds for row in rows)
    return f"median, bars: {kinds}" if kinds else "one seed"


def _panels(
    group: RunGroup, targets: Iterable[Target], rows: Mapping[str, Sequence[tuple[float, Contender]]]
) -> tuple[Panel, ...]:
    """A panel for each of `targets`. rows: of each line by name, at rising x."""
    styles = contender_styles(group)

    def line(name: str, level: float) -> Series:
        never_run = [x for x, row in rows[name] if row.extrapolated_from is not None]
        return series_of(name, styles[name], [(x, row.time(level)) for x, row in rows[name]], never_run)

    return tuple(
        Panel(
            title=f"to {target.of(group.metric)}",
            target=target.short,
            series=tuple(line(name, target.level) for name in rows),
        )
        for target in targets
    )


def _not_drawn(rows: Sequence[Sequence[Contender]], targets: Sequence[Target]) -> str:
    """A remark on methods that reached a target in 0 s, which a logarithmic axis cannot show."""
    at_once = []
    for target in targets:
        names = [row[0].name for row in rows if any(there.time(target.level).median == 0 for there in row)]
        at_once += [f"{', '.join(names)} to {target.short}"] if names else []
    return f"; in 0 s and not drawn: {', '.join(at_once)}" if at_once else ""


def _tick_places(bandwidths: Sequence[float]) -> tuple[float, ...]:
    """Powers of ten among the bandwidths if there are two, else bandwidths, far enough apart for their names."""
    low, high = math.log10(bandwidths[0]), math.log10(bandwidths[-1])
    decades = [10.0**power for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]
    places: list[float] = []
    for bits in decades if len(decades) > 1 else bandwidths:
        if not places or math.log10(bits / places[-1]) >= _NAME_WIDTH * (high - low):
            places.append(bits)
    return tuple(places)
