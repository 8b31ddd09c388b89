"""Select the runs of a report by workload and metric, and check the baseline."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from istbench.cluster.profile import ClusterProfile
from istbench.config.defaults import BASELINE
from istbench.errors import UserError, shown, unknown_name
from istbench.report.baseline import is_named
from istbench.report.groups import group_runs, row_settings
from istbench.results.load import Run
from istbench.results.metrics import agreement, named_as_falling
from istbench.results.stats import median


def select_runs(
    runs: list[Run], results: Path, *, workload: str | None, metric: str | None, levels: tuple[float, ...]
) -> tuple[list[Run], list[str]]:
    """The selected runs, with metric and levels applied, and a line for each workload that the report leaves out.

    workload: name of the only workload, with or without its options; None for all.
    metric: selects the workloads that have this metric; None for the metric of each workload.
    levels: levels of the metric to report times to; none for those of the run.

    Raises:
        UserError: if no run has the workload or metric, or the metric falls as a model gets better.
    """
    runs, problems = _by_metric(_of_workload(runs, workload, results), metric, results), list[str]()
    if metric is None:
        runs, problems = _by_own_metric(runs)
    return [dataclasses.replace(run, levels=levels) for run in runs], problems


def _of_workload(runs: list[Run], workload: str | None, results: Path) -> list[Run]:
    if workload is None:
        return runs
    names = {name for run in runs for name in (run.header.workload, run.header.workload_label)}
    if workload not in names:
        raise unknown_name(f"workload in {results}", workload, names)
    return [run for run in runs if workload in (run.header.workload, run.header.workload_label)]


def _by_metric(runs: list[Run], metric: str | None, results: Path) -> list[Run]:
    if metric is None:
        return runs
    having: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for evaluation in run.curve.evaluations:
            for name in evaluation.metrics:
                having[name].add(run.header.workload_label)
    rising = sorted(name for name in having if name != metric and not named_as_falling(name))
    if metric not in having:
        raise unknown_name(f"metric in {results}", metric, rising)
    by_metric = [
        dataclasses.replace(run, curve=dataclasses.replace(run.curve, metric=metric))
        for run in runs
        if run.header.workload_label in having[metric]
    ]
    why = _why_falling(metric, by_metric)
    if why:
        way_out = f"name one that rises: {', '.join(rising)}" if rising else "leave it out"
        raise UserError(f"--metric {shown(metric)}: {why}, and reports take higher values as better; {way_out}")
    return by_metric


def _why_falling(metric: str, runs: Sequence[Run]) -> str:
    """The reason to think that `metric` falls as models get better; empty without one."""
    if named_as_falling(metric):
        return "it falls as a model gets better"
    known = [
        (found, run.header.metric)
        for run in runs
        if run.header.metric != metric and not named_as_falling(run.header.metric)
        if (found := agreement(run.curve.values, dataclasses.replace(run.curve, metric=run.header.metric).values))
        is not None
    ]
    if known and median([found for found, _ in known]) < 0:
        return f"it falls where {known[0][1]} rises"
    return ""


def _by_own_metric(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """The runs of workloads whose metric rises, and a line for each other workload.

    Raises:
        UserError: if no workload has a rising metric.
    """
    falling = sorted(
        {(r.header.workload_label, r.header.metric) for r in runs if named_as_falling(r.header.metric)}
    )
    problems = [
        f"{workload}: its metric {shown(metric)} falls as a model gets better, and reports take higher values as "
        "better; let the workload name a metric that rises, or name one with --metric"
        for workload, metric in falling
    ]
    rising = [run for run in runs if not named_as_falling(run.header.metric)]
    if problems and not rising:
        raise UserError(problems[0])
    return rising, problems


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
        raise unknown_name(f"baseline in {results}", baseline, names)
