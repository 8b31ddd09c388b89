"""Select the runs of a report by workload and metric, and check the baseline."""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from istbench.base.errors import unknown_name
from istbench.base.options.defaults import BASELINE
from istbench.cluster.profile import ClusterProfile
from istbench.report.baseline import is_named
from istbench.report.groups import group_runs, row_settings
from istbench.results.load import Run
from istbench.results.metrics import Metric, agreement, check_share, metric_named
from istbench.results.stats import median


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
        raise unknown_name(f"workload in {results}", workload, names)
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
        raise unknown_name(f"metric in {results}", name, having)
    chosen = [run for run in runs if run.header.workload_label in having[name]]
    recorded = {run.header.workload_label: own for run in chosen if (own := _recorded(name, run)) is not None}
    other = _direction(name, chosen, recorded.values())
    return [
        dataclasses.replace(run, curve=run.curve.on_metric(recorded.get(run.header.workload_label, other)))
        for run in chosen
    ]


def _recorded(name: str, run: Run) -> Metric | None:
    own = run.curve.metric
    return own if own.name == name else None


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
        raise unknown_name(f"baseline in {results}", baseline, names)
