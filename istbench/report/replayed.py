"""A report on recorded runs, replayed on other clusters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from istbench.base.errors import UserError
from istbench.base.options.defaults import BASELINE
from istbench.cluster.profile import ClusterProfile
from istbench.report.answer import answer_lines
from istbench.report.groups import Group, Sweep, by_study, group_runs, sweeps_of
from istbench.report.overview import overview
from istbench.report.plots.time_to_target import time_by_bandwidth
from istbench.report.report import Report, cluster_tables, group_plots
from istbench.report.selection import check_baseline, select_runs
from istbench.report.tables.crossings import crossings_table
from istbench.results.load import Run, load_run, load_runs
from istbench.results.on_cluster import Redeal, runs_on_clusters
from istbench.results.store import RunDirectory


@dataclass(frozen=True, kw_only=True)
class ReplayedGroups:
    """Recorded runs on the clocks of clusters.

    groups: of each profile in turn. sweeps: each group on each cluster, by bandwidth; cluster by cluster.
    problems: a line for each run that is left out.
    """

    groups: tuple[Group, ...]
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
    nodes: Sequence[int] = (),
    redeal: "Redeal | None" = None,
    tell: Callable[[int, int], None] | None = None,
) -> ReplayedGroups:
    """The runs in `results`, a results directory or one run's, on the clock of each of `clusters`.

    clusters: profiles of each cluster by its name, by rising bandwidth.
    baseline, workload, metric, levels: as in `build_report`. nodes, redeal, tell: as in
    `runs_on_clusters`.

    Raises:
        UserError: if no run can be replayed, or none has that workload, metric or baseline.
    """
    runs, problems = _read(results)
    runs = select_runs(runs, results, workload=workload, metric=metric, levels=levels)
    profiles = [profile for family in clusters.values() for profile in family]
    check_baseline(baseline, runs, results, profiles[0])
    on_clusters, unreplayed = runs_on_clusters(runs, profiles, nodes, redeal, tell)
    if not any(run.done for moved in on_clusters for run in moved):
        reason = f": {unreplayed[0]}" if unreplayed else "; no run is finished"
        raise UserError(f"nothing to replay in {results}{reason}")
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
    workload: str | None = None,
    metric: str | None = None,
    levels: tuple[float, ...] = (),
    nodes: Sequence[int] = (),
    redeal: "Redeal | None" = None,
    tell: Callable[[int, int], None] | None = None,
) -> Report:
    """The report on the runs that `replay_runs` gives for the same arguments.

    Several profiles of a cluster add a table of crossings and a plot for each number of nodes.

    Raises:
        UserError: as `replay_runs` does.
    """
    replayed = replay_runs(
        results, clusters, baseline=baseline, workload=workload, metric=metric, levels=levels, nodes=nodes,
        redeal=redeal, tell=tell,
    )  # fmt: skip
    sweeps = [sweep for sweep in replayed.sweeps if sweep.compares]
    by_bandwidth = [time_by_bandwidth(sweep, nodes) for sweep in sweeps for nodes in sweep.groups[0].nodes]
    studies = by_study(replayed.groups)
    return Report(
        answers=answer_lines(studies, baseline),
        overview=tuple(overview(study, baseline) for study in studies),
        tables=(
            *cluster_tables(replayed.groups, baseline),
            *(crossings_table(sweep, baseline) for sweep in sweeps),
        ),
        plots=(*group_plots(replayed.groups), *by_bandwidth),
        problems=replayed.problems,
        groups=replayed.groups,
        sweeps=tuple(sweeps),
        baseline=baseline,
    )


def _read(results: Path) -> tuple[list[Run], list[str]]:
    one = RunDirectory(results)
    return ([load_run(one)], []) if one.exists() else load_runs(results)
