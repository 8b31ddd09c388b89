"""Seconds with faults over those without, by the number of faults: measured beside simulated."""

from collections.abc import Callable

from istbench.report.faulty_runs import FaultResults, FaultRow
from istbench.report.groups import RunGroup
from istbench.report.plots.plot import (
    OF_FAULTS,
    Panel,
    Plot,
    Series,
    contender_styles,
    plot_subtitle,
    plot_title,
    series_of,
)
from istbench.results.stats import SeedMedian, interval_name, seed_median

_LEVELS = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)


def times_by_faults(found: FaultResults, group: RunGroup) -> Plot:
    """A panel of the measured factors and one of the simulated ones, a line for each row of `group`.

    x is the place of the schedule among those there are, counted from 0.
    """
    shorts = list(dict.fromkeys(row.short for row in found.rows))
    names = {(row.label, row.nodes): row.name for row in group.contenders}
    styles, several = contender_styles(group), len({row.nodes for row in found.rows}) > 1
    seeds = max(len(row.runs) for row in found.rows)

    def points(
        rows: list[FaultRow], factor: Callable[[FaultRow], SeedMedian | None]
    ) -> list[tuple[float, SeedMedian]]:
        return [(float(shorts.index(row.short)), at) for row in rows if (at := factor(row)) is not None]

    def series(factor: Callable[[FaultRow], SeedMedian | None]) -> tuple[Series, ...]:
        return tuple(
            series_of(f"{name}, {nodes} nodes" if several else name, styles[name], points(own, factor))
            for (label, nodes), name in names.items()
            if (own := [row for row in found.rows if (row.label, row.nodes) == (label, nodes)])
        )

    measured = series(lambda row: row.times)
    highest = max((height for line in measured for height in line.y), default=1.0)
    levels = tuple(level for level in _LEVELS if level <= highest)
    spread = "one seed" if seeds < 2 else f"median over seeds, {interval_name(seeds)}"
    return Plot(
        stem=f"{group.stem}{OF_FAULTS}",
        title=plot_title(group),
        subtitle=plot_subtitle(group, spread),
        kind="points",
        x_label="faults a run, on average",
        y_label="seconds over those without faults",
        panels=tuple(
            Panel(title=title, series=lines, levels=levels, level_names=tuple(f"{level:g}" for level in levels))
            for title, lines in (("measured", measured), ("simulated", series(_simulated)))
        ),
        y_scale="log",
        ticks=tuple(shorts),
    )


def _simulated(row: FaultRow) -> SeedMedian | None:
    value = 1.0 if row.schedule is None else row.simulated
    return None if value is None else seed_median([value])
