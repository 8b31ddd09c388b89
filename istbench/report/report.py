"""A report as data: tables, plots and problems of recorded runs, also as replayed on other clusters."""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from istbench.base.errors import UserError, unknown_name
from istbench.base.options.data_source import DataSource
from istbench.base.options.defaults import BASELINE
from istbench.base.options.shares import Shares
from istbench.base.units import counted
from istbench.cluster.profile import ClusterProfile, at_bandwidth
from istbench.report.answer import answer_lines
from istbench.report.baseline import is_named
from istbench.report.groups import RunGroup, Sweep, by_study, group_runs, row_settings, sweeps_of
from istbench.report.overview import overview
from istbench.report.plots.over_time import metric_over
from istbench.report.plots.plot import Plot
from istbench.report.plots.time_to_target import time_by_bandwidth, time_by_nodes
from istbench.report.tables.comparison import comparison
from istbench.report.tables.crossings import crossings_table
from istbench.report.tables.group_columns import group_context
from istbench.report.tables.spending import node_seconds_table, spending
from istbench.report.tables.table import Table
from istbench.results.load import Run, load_all_runs, load_run, load_runs
from istbench.results.metrics import Metric, agreement, check_share, metric_named
from istbench.results.on_cluster import Redeal, add_shares, runs_on_clusters, under_faults
from istbench.results.stats import median
from istbench.results.store import RunDirectory

if TYPE_CHECKING:
    from istbench.cluster.faults import Faults

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
    plots: tuple[Plot, ...] = ()
    problems: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    overview: tuple[Table, ...] = ()
    groups: tuple[RunGroup, ...] = field(default=(), compare=False)
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
    runs, faulty, problems = load_all_runs(results, cells)
    runs = [run.on_data((sources or {}).get(run.header.cell)) for run in runs]
    runs = select_runs(runs, results, workload=workload, metric=metric, levels=levels)
    check_baseline(baseline, runs, results, cluster)
    groups = sorted(group_runs(runs, baseline), key=lambda group: not group.contenders)  # unfinished runs last
    tables, sweeps, disturbed, shown = list[Table](), list[Sweep](), list[Plot](), set[str]()
    for group in groups:
        tables += [comparison(group, baseline), *filter(None, [node_seconds_table(group, baseline)])]
        if faulty:
            from istbench.report.faulty_runs import fault_results  # numpy, which no other report needs
            from istbench.report.plots.measured_faults import times_by_faults
            from istbench.report.tables.measured_faults import faults_table

            if (found := fault_results(group.runs, faulty, group.label_of)) is not None:
                tables.append(dataclasses.replace(faults_table(found), context=group_context(group, baseline)))
                disturbed.append(times_by_faults(found, group))
                shown |= {run.cell for row in found.rows for run in row.runs}
    if workload is None and (left := [run for run in faulty if run.header.cell not in shown]):
        problems.append(
            f"{counted(len(left), 'run')} with faults: the run without them is not finished, missed its target or "
            "lost a worker itself"
        )
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
        on_cluster = [group for group in on_cluster if group.contenders]  # its runs may have no trace
        tables += _cluster_tables(on_cluster, baseline)
        groups += on_cluster
        problems += unreplayed
    return _report(groups, sweeps, tables, [*_group_plots(groups), *disturbed], problems, baseline)


@dataclass(frozen=True, kw_only=True)
class ReplayedGroups:
    """Recorded runs on the clocks of clusters.

    groups: of each profile in turn. sweeps: each group on each cluster, by bandwidth; cluster by cluster.
    problems: a line for each run that is left out.
    """

    groups: tuple[RunGroup, ...]
    sweeps: tuple[Sweep, ...]
    problems: tuple[str, ...]


def replay_runs(
    results: Path,
    clusters: Mapping[str, Sequence[ClusterProfile]],
    *,
    baseline: str = BASELINE,
    workload: str | None = None,
    metric: str | None = None,
    levels: tuple[float, ...] = (),
    cells: Iterable[str] | None = None,
    nodes: Sequence[int] = (),
    redeal: "Redeal | None" = None,
    tell: Callable[[int, int], None] | None = None,
    shares: Shares | None = None,
    faults: "Faults | None" = None,
) -> ReplayedGroups:
    """The runs in `results`, a results directory or one run's, on the clock of each of `clusters`.

    clusters: profiles of each cluster by its name, by rising bandwidth.
    baseline, workload, metric, levels, cells: as in `build_report`. nodes, redeal, tell: as in `runs_on_clusters`.
    shares: adds rows with these shares of unequal nodes (`add_shares`).
    faults: all seconds are means with these faults (`under_faults`).

    Raises:
        UserError: if no run can be replayed, or none has that workload, metric or baseline.
    """
    one = RunDirectory(results)
    runs, problems = ([load_run(one)], []) if one.exists() else load_runs(results, cells)
    runs = select_runs(runs, results, workload=workload, metric=metric, levels=levels)
    profiles = [profile for family in clusters.values() for profile in family]
    check_baseline(baseline, runs, results, profiles[0])
    on_clusters, unreplayed = runs_on_clusters(runs, profiles, nodes, redeal, tell)
    if shares is not None:
        unreplayed += add_shares(on_clusters, runs, profiles, shares)
    if not any(run.done for moved in on_clusters for run in moved):
        reason = f": {unreplayed[0]}" if unreplayed else "; no run is finished"
        raise UserError(f"nothing to replay in {results}{reason}")
    if faults is not None:
        on_clusters = [[under_faults(run, faults) for run in moved] for moved in on_clusters]
    of_profile = {
        profile.name: [group for group in group_runs(moved, baseline, profile) if group.contenders]
        for profile, moved in zip(profiles, on_clusters, strict=True)
    }
    sweeps = [
        sweep
        for name, family in clusters.items()
        for sweep in sweeps_of(name, [of_profile[profile.name] for profile in family])
    ]
    return ReplayedGroups(
        groups=tuple(group for of_one in of_profile.values() for group in of_one),
        sweeps=tuple(sweeps),
        problems=(*problems, *unreplayed),
    )


def build_report_on_clusters(
    results: Path,
    clusters: Mapping[str, Sequence[ClusterProfile]],
    *,
    baseline: str = BASELINE,
    faults: "Faults | None" = None,
    **selected: Any,
) -> Report:
    """The report on the runs that `replay_runs` gives for the same arguments.

    `faults` add a table of the seconds with them, also to the overview. Several profiles of a cluster add a table
    of crossings and a plot for each number of nodes.

    Raises:
        UserError: as `replay_runs` and `with_faults` do.
    """
    replayed = replay_runs(results, clusters, baseline=baseline, **selected)
    failing = list[Table]()
    if faults is not None:
        from istbench.report.faults import faults_table  # numpy, which no other report needs

        failing = [*filter(None, (faults_table(group, faults, baseline) for group in replayed.groups))]
    sweeps = [sweep for sweep in replayed.sweeps if sweep.compares]
    by_bandwidth = [time_by_bandwidth(sweep, nodes) for sweep in sweeps for nodes in sweep.groups[0].nodes]
    tables = [
        *_cluster_tables(replayed.groups, baseline),
        *failing,
        *(crossings_table(sweep, baseline) for sweep in sweeps),
    ]
    plots = _group_plots(replayed.groups) + by_bandwidth
    report = _report(replayed.groups, sweeps, tables, plots, replayed.problems, baseline)
    return dataclasses.replace(report, overview=(*report.overview, *failing))


def _report(
    groups: Sequence[RunGroup],
    sweeps: Iterable[Sweep],
    tables: Iterable[Table],
    plots: Iterable[Plot],
    problems: Iterable[str],
    baseline: str,
) -> Report:
    studies = by_study(groups)
    return Report(
        answers=answer_lines(studies, baseline),
        overview=tuple(overview(study, baseline) for study in studies),
        tables=tuple(tables),
        plots=tuple(plots),
        problems=tuple(problems),
        groups=tuple(groups),
        sweeps=tuple(sweeps),
        baseline=baseline,
    )


def _cluster_tables(groups: Iterable[RunGroup], baseline: str) -> list[Table]:
    """The main table and the spending of each of `groups` that has runs, on the clock of a cluster."""
    return [
        table
        for group in groups
        if group.contenders
        for table in (comparison(group, baseline), spending(group, baseline))
    ]


def _group_plots(groups: Iterable[RunGroup]) -> list[Plot]:
    """The metric over time and, with several numbers of nodes, the time to each target, for each of `groups`."""
    plots = []
    for group in groups:
        if group.contenders:
            plots.append(metric_over(group))
            if group.targets and len(group.nodes) > 1:  # one number of nodes is no axis: the table has its seconds
                plots.append(time_by_nodes(group))
    return plots


def select_runs(
    runs: list[Run], results: Path, *, workload: str | None, metric: str | None, levels: tuple[float, ...]
) -> list[Run]:
    """The selected runs, with metric and levels applied.

    workload: name of the only workload, with or without its options; None for all.
    metric: selects the workloads that have this metric; None for the metric of each workload.
    levels: levels of the metric to report times to; none for those of the run.

    Raises:
        UserError: if no run has the workload or metric; for a level in percent of a metric of shares.
    """
    runs = _by_metric(_of_workload(runs, workload, results), metric, results)
    for level, run in itertools.product(levels, runs):
        if run.curve.metric.name == run.header.metric:
            check_share(level, run.header.metric, run.header.targets, run.header.workload, "level ")
    return [dataclasses.replace(run, levels=levels) for run in runs]


def _of_workload(runs: list[Run], workload: str | None, results: Path) -> list[Run]:
    if workload is None:
        return runs
    names = {name for run in runs for name in (run.header.workload, run.header.workload_label)}
    if workload not in names:
        raise unknown_name("workload", workload, names, f"in {results}")
    return [run for run in runs if workload in (run.header.workload, run.header.workload_label)]


def _by_metric(runs: list[Run], name: str | None, results: Path) -> list[Run]:
    """The runs of workloads with the metric of that `name`, by that metric."""
    if name is None:
        return runs
    having: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for evaluation in run.curve.evaluations:
            for found in evaluation.metrics:
                having[found].add(run.header.workload_label)
    if name not in having:
        raise unknown_name("metric", name, having, f"in {results}")
    chosen = [run for run in runs if run.header.workload_label in having[name]]
    recorded = {run.header.workload_label: run.curve.metric for run in chosen if run.curve.metric.name == name}
    other = _direction(name, chosen, recorded.values())
    return [
        dataclasses.replace(run, curve=run.curve.on_metric(recorded.get(run.header.workload_label, other)))
        for run in chosen
    ]


def _direction(name: str, runs: Sequence[Run], recorded: Iterable[Metric]) -> Metric:
    """The metric of that `name` in runs that have another one of their own.

    The direction is that of a workload that records it, else that of the name, else that of the curves: the metric
    falls if it does so in the median run while the workload's own metric gets better. Else it rises, by assumption.
    """
    for own in recorded:
        return dataclasses.replace(own, unit="")
    named = metric_named(name)
    if named.source == "name":
        return named
    metric = Metric(name)
    beside = [
        found
        for run in runs
        if (own := run.curve.metric).name != name
        if (found := agreement(run.curve.on_metric(metric).values, run.curve.values, own)) is not None
    ]
    return Metric(name, lower_is_better=median(beside) < 0, source="curves") if beside else named


def check_baseline(
    baseline: str, runs: Sequence[Run], results: Path, cluster: ClusterProfile | None = None
) -> None:
    """Refuse a `baseline` that names no method of `runs` and no row. The default baseline needs no run.

    cluster: replays the runs too. A table of replays may need longer labels.

    Raises:
        UserError: with all names of methods and rows.
    """
    groups = group_runs(runs) + (group_runs(runs, profile=cluster) if cluster else [])
    labels = {contender.label for group in groups for contender in group.contenders}
    names = labels | {name for run in runs for name in (run.header.method, run.header.method_label)}
    known = baseline in names or any(
        is_named(baseline, run.header.method_label, run.header.method, row_settings(run)) for run in runs
    )
    if baseline != BASELINE and not known:
        raise unknown_name("baseline", baseline, names, f"in {results}")
