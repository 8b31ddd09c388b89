"""The runs that a report is on, by the names that a user gives."""

from collections.abc import Sequence
from pathlib import Path

from istbench.cluster.profile import ClusterProfile
from istbench.config.defaults import BASELINE
from istbench.errors import unknown_name
from istbench.report.groups import group_runs
from istbench.results.load import Run


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
