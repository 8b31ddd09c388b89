"""The runs that a report is on, by the names that a user gives."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from istbench.cluster.profile import ClusterProfile
from istbench.config.defaults import BASELINE
from istbench.errors import unknown_name
from istbench.report.groups import group_runs
from istbench.results.load import Run

_LOSS = "loss"  # of an evaluation, of whose numbers all others are better the higher they are


def select_runs(
    runs: list[Run], results: Path, *, workload: str | None, metric: str | None, levels: tuple[float, ...]
) -> list[Run]:
    """Those of `runs` that are asked for, as they are asked for.

    workload: only this one, with or without its options; None for all.
    metric: of their evaluations, and only workloads that have it; None for each workload's own.
    levels: of the metric, to give the times to; none for their own.

    Raises:
        UserError: where there are none of the workload or metric, or less of the metric is better.
    """
    runs = _by_metric(_of_workload(runs, workload, results), metric, results)
    return [dataclasses.replace(run, levels=levels) for run in runs]


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
            for name in evaluation.metrics.keys() - {_LOSS}:
                having[name].add(run.header.workload_label)
    if metric not in having:
        raise unknown_name(f"metric in {results}", metric, having)
    return [
        dataclasses.replace(run, curve=dataclasses.replace(run.curve, metric=metric))
        for run in runs
        if run.header.workload_label in having[metric]
    ]


def check_baseline(
    baseline: str, runs: Sequence[Run], results: Path, cluster: ClusterProfile | None = None
) -> None:
    """Refuse a `baseline` that is neither a method of `runs` nor the label of a row; the default needs no run.

    cluster: where the runs are replayed as well, which may put rows side by side that need longer labels.

    Raises:
        UserError: with the methods and labels there are.
    """
    groups = group_runs(runs) + (group_runs(runs, profile=cluster) if cluster else [])
    labels = {contender.label for group in groups for contender in group.contenders}
    names = labels | {name for run in runs for name in (run.header.method, run.header.method_label)}
    if baseline != BASELINE and baseline not in names:
        raise unknown_name(f"baseline in {results}", baseline, names)
