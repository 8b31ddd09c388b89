"""A report: the tables and pictures of a results directory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from istbench.cluster.profile import ClusterProfile
from istbench.config.defaults import BASELINE
from istbench.errors import UserError, unknown_name
from istbench.report.groups import Group, group_runs
from istbench.report.plots.by_nodes import time_by_nodes
from istbench.report.plots.over_time import metric_over_time
from istbench.report.plots.plot import Plot
from istbench.report.tables.comparison import comparison
from istbench.report.tables.spending import spending
from istbench.report.tables.table import Table
from istbench.results.load import Run, load_runs
from istbench.results.on_cluster import runs_on_clusters


@dataclass(frozen=True, kw_only=True)
class Report:
    """tables: one for each set of runs that may be compared. problems: a line for each unreadable run.

    pictures: the files drawn, PNG and SVG.
    """

    tables: tuple[Table, ...]
    problems: tuple[str, ...]
    pictures: tuple[Path, ...]


def build_report(
    results: Path,
    *,
    baseline: str = BASELINE,
    workload: str | None = None,
    cells: Iterable[str] | None = None,
    pictures: bool = True,
    cluster: ClusterProfile | None = None,
) -> Report:
    """The report on results directory `results`; pictures are drawn into `results/report`.

    baseline: method, or method with its options as the table shows it, that speed-ups are against.
    workload: only this one, with or without its options. cells: only those of these names.
    cluster: where to replay the same runs, for more tables and pictures.

    Raises:
        UserError: where there are no runs to report on, or the pictures cannot be written.
    """
    runs, problems = load_runs(results, cells)
    runs = of_workload(runs, workload, results)
    groups = group_runs(runs, baseline)
    tables = [comparison(group, baseline) for group in groups]
    if cluster is not None:
        (replayed,), unreplayed = runs_on_clusters(runs, [cluster])
        on_cluster = group_runs(replayed, baseline, cluster)
        tables += cluster_tables(on_cluster, baseline)
        groups += on_cluster
        problems += unreplayed
    return Report(
        tables=tuple(tables),
        problems=tuple(problems),
        pictures=tuple(draw_groups(groups, results / "report") if pictures else ()),
    )


def of_workload(runs: list[Run], workload: str | None, results: Path) -> list[Run]:
    """Those of `runs` that are of `workload`, named with or without its options; all where it is None.

    Raises:
        UserError: where there are none of it.
    """
    if workload is None:
        return runs
    names = {name for run in runs for name in (run.header.workload, run.header.workload_label)}
    if workload not in names:
        raise unknown_name(f"workload in {results}", workload, names)
    return [run for run in runs if workload in (run.header.workload, run.header.workload_label)]


def cluster_tables(groups: Iterable[Group], baseline: str) -> list[Table]:
    """For each of `groups`, on a cluster's clock, its comparison and where the time goes; none without a run."""
    return [
        table
        for group in groups
        if group.contenders
        for table in (comparison(group, baseline), spending(group, baseline))
    ]


def draw_groups(groups: Sequence[Group], directory: Path) -> list[Path]:
    """The pictures of `groups`, drawn into `directory`.

    Raises:
        UserError: where they cannot be written.
    """
    plots: dict[str, Plot] = {}
    for group in groups:
        if group.contenders:
            plots[f"{group.stem}-over-time"] = metric_over_time(group)
            if group.levels:
                plots[f"{group.stem}-time-to-target"] = time_by_nodes(group)
    return draw_plots(plots, directory)


def draw_plots(plots: Mapping[str, Plot], directory: Path) -> list[Path]:
    """`plots` by file name, drawn into `directory`.

    Raises:
        UserError: where they cannot be written.
    """
    from istbench.report.output.pictures import draw

    try:
        if plots:
            directory.mkdir(parents=True, exist_ok=True)
        return [path for name, plot in plots.items() for path in draw(plot, directory / name)]
    except OSError as error:
        raise UserError(
            f"cannot write pictures to {directory}: {error.strerror or error}; --no-pictures leaves them out"
        ) from None
