"""A report as data: tables, plots and problems of a results directory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from istbench.base.options.data_source import DataSource
from istbench.base.options.defaults import BASELINE
from istbench.cluster.profile import ClusterProfile, at_bandwidth
from istbench.report.answer import answer_lines
from istbench.report.groups import Group, Sweep, by_study, group_runs, sweeps_of
from istbench.report.overview import overview
from istbench.report.plots.over_time import metric_over
from istbench.report.plots.plot import Plot
from istbench.report.plots.time_to_target import time_by_nodes
from istbench.report.selection import check_baseline, select_runs
from istbench.report.tables.comparison import comparison
from istbench.report.tables.node_seconds import node_seconds_table
from istbench.report.tables.spending import spending
from istbench.report.tables.table import Table
from istbench.results.load import load_runs
from istbench.results.on_cluster import runs_on_clusters

# A replay takes some 10 ms. More runs on several links would delay a report.
_MOST_SWEPT = 60


@dataclass(frozen=True, kw_only=True)
class Report:
    """Tables, plots and problems of runs. It writes nothing; every form of output is made from it.

    answers: a line each, the first at a terminal. overview: the tables that a terminal shows in place of `tables`,
    unless asked for all; if empty, it shows `tables`.
    tables: for each group of comparable runs. plots: for the same groups, each with a file name of its own.
    problems: a line for each run that the report leaves out.
    groups: the tables' groups. sweeps: the same runs at several bandwidths. baseline: of their speed-ups.
    """

    tables: tuple[Table, ...]
    plots: tuple[Plot, ...]
    problems: tuple[str, ...]
    answers: tuple[str, ...] = ()
    overview: tuple[Table, ...] = ()
    groups: tuple[Group, ...] = field(default=(), compare=False)
    sweeps: tuple[Sweep, ...] = field(default=(), compare=False)
    baseline: str = BASELINE


def build_report(
    results: Path,
    *,
    baseline: str = BASELINE,
    workload: str | None = None,
    metric: str | None = None,
    levels: tuple[float, ...] = (),
    cells: Iterable[str] | None = None,
    cluster: ClusterProfile | None = None,
    bandwidths: Sequence[float] = (),
    sources: Mapping[str, DataSource | None] | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> Report:
    """The report on results directory `results`.

    baseline: the baseline of the speed-ups, a method or a method with its options as the table shows it.
    workload, metric, levels: as in `select_runs`. cells: names of the only cells to report.
    cluster: replays the same runs there, for more tables and plots. bandwidths: of its links, bits/s, rising, for
    `sweeps`.
    sources: by cell, the data of the command, to show in place of the recorded one.
    tell: as in `runs_on_clusters`.

    Raises:
        UserError: if there are no runs, or none of that workload, metric or baseline.
    """
    runs, problems = load_runs(results, cells)
    runs = [run.on_data((sources or {}).get(run.header.cell)) for run in runs]
    runs = select_runs(runs, results, workload=workload, metric=metric, levels=levels)
    check_baseline(baseline, runs, results, cluster)
    groups = sorted(group_runs(runs, baseline), key=lambda group: not group.contenders)  # unfinished runs last
    tables, sweeps = [], list[Sweep]()
    for group in groups:
        tables += [comparison(group, baseline), *filter(None, [node_seconds_table(group, baseline)])]
    if cluster is not None:
        if bandwidths and len(runs) > _MOST_SWEPT:
            listed = ",".join(f"{bits / 1e6:g}mbit" for bits in bandwidths)
            problems.append(
                f"seconds against bandwidth, for more than {_MOST_SWEPT} runs: `istbench replay --bandwidth "
                f"{listed}` has them"
            )
            bandwidths = ()
        profiles = [cluster, *(at_bandwidth(cluster, bits) for bits in bandwidths)]
        replayed, unreplayed = runs_on_clusters(runs, profiles, tell=tell)
        on_cluster, *on_links = [
            group_runs(moved, baseline, profile) for profile, moved in zip(profiles, replayed, strict=True)
        ]
        sweeps = [sweep for sweep in sweeps_of(cluster.name, on_links) if sweep.compares]
        tables += cluster_tables(on_cluster, baseline)
        groups += on_cluster
        problems += unreplayed
    studies = by_study(groups)
    return Report(
        answers=answer_lines(studies, baseline),
        overview=tuple(overview(study, baseline) for study in studies),
        tables=tuple(tables),
        plots=tuple(group_plots(groups)),
        problems=tuple(problems),
        groups=tuple(groups),
        sweeps=tuple(sweeps),
        baseline=baseline,
    )


def cluster_tables(groups: Iterable[Group], baseline: str) -> list[Table]:
    """The main table and the spending of each of `groups` that has runs, on the clock of a cluster."""
    return [
        table
        for group in groups
        if group.contenders
        for table in (comparison(group, baseline), spending(group, baseline))
    ]


def group_plots(groups: Iterable[Group]) -> list[Plot]:
    """The metric over time and, with several numbers of nodes, the time to each target, for each of `groups`."""
    plots = []
    for group in groups:
        if group.contenders:
            plots.append(metric_over(group))
            if group.targets and len(group.nodes) > 1:  # one number of nodes is no axis: the table has its seconds
                plots.append(time_by_nodes(group))
    return plots
