"""Recorded runs on the clock of another cluster.

What a synchronous method learns does not depend on how fast the machines are: the evaluations stay, only when they
were changes.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from istbench.cluster.clock import cluster_time
from istbench.cluster.profile import ClusterProfile
from istbench.errors import UserError
from istbench.results.load import Run

if TYPE_CHECKING:
    from istbench.cluster.trace import Trace

_NAMED_AT_MOST = 8


def replayed_run(run: Run, trace: "Trace", profile: ClusterProfile) -> Run:
    """`run` with `cluster_s` on `profile` for its train time; `cluster` says how that was spent.

    Raises:
        UserError: where the trace cannot be replayed.
    """
    evaluations = run.curve.evaluations
    time = cluster_time(trace, profile, [evaluation.step for evaluation in evaluations])
    moved = tuple(
        dataclasses.replace(evaluation, train_s=seconds)
        for evaluation, seconds in zip(evaluations, time.seconds, strict=True)
    )
    curve = dataclasses.replace(run.curve, evaluations=moved)
    return dataclasses.replace(run, header=_header(run, profile), curve=curve, cluster=time)


def replay_runs(runs: Sequence[Run], profiles: Sequence[ClusterProfile]) -> tuple[list[list[Run]], list[str]]:
    """For each of `profiles` the `runs` on its clock, and a line for each finished run that has no clock there.

    Unfinished runs come along without being replayed, so that a report can count them. All runs without a trace
    share a line.
    """
    from istbench.cluster.trace_file import load_trace

    on_clusters: list[list[Run]] = [[] for _ in profiles]
    problems: list[str] = []
    untraced: list[str] = []
    for run in runs:
        cell = run.header["cell"]
        if not run.done:
            moved = [dataclasses.replace(run, header=_header(run, profile)) for profile in profiles]
        elif not run.directory.trace.exists():
            untraced.append(cell)
            continue
        else:
            try:
                trace = load_trace(run.directory.trace)
                moved = [replayed_run(run, trace, profile) for profile in profiles]
            except UserError as error:
                problems.append(f"{cell}: {error}")
                continue
        for found, there in zip(on_clusters, moved, strict=True):
            found.append(there)
    if untraced:
        more = f" and {len(untraced) - _NAMED_AT_MOST} more" if len(untraced) > _NAMED_AT_MOST else ""
        problems.append(
            f"no trace to replay, which takes two whole rounds of training: "
            f"{', '.join(untraced[:_NAMED_AT_MOST])}{more}"
        )
    return on_clusters, problems


def _header(run: Run, profile: ClusterProfile) -> dict[str, object]:
    return {**run.header, "clock": "cluster_s", "host": {"name": profile.name}}
