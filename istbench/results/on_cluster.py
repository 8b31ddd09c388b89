"""Put recorded runs on the clock of another cluster.

The learning curve of a synchronous method does not depend on the speed of the machines. The evaluations stay; only
their times change.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from istbench.base.errors import UserError
from istbench.base.options.shares import Shares, in_proportion
from istbench.cluster.clock import cluster_time
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.replay_checks import Check, checks_in, replay_check
from istbench.results.load import Run

if TYPE_CHECKING:
    from istbench.cluster.faults import Faults
    from istbench.cluster.trace import Trace

Redeal: TypeAlias = "Callable[[Run, Trace, int], tuple[Run, Trace]]"

_NAMED_AT_MOST = 8


def run_on_cluster(
    run: Run, trace: "Trace", profile: ClusterProfile, checks: Mapping[str, Check] | None = None
) -> Run:
    """`run` with its curve on the clock of `profile`, and the shares of its time there in `cluster`.

    checks: the user's own checks of replays, by method; by default those in the results directory, if readable.

    Raises:
        UserError: if the trace cannot be replayed.
    """
    time = cluster_time(profile.seen(trace), profile, [evaluation.step for evaluation in run.curve.evaluations])
    own = own_checks(_results(run))[0] if checks is None else checks
    time = dataclasses.replace(time, check=replay_check(run.header.method, own))
    return dataclasses.replace(run, curve=run.curve.on_clock("cluster_s", time.seconds), cluster=time)


def own_checks(results: Path) -> tuple[Mapping[str, Check], list[str]]:
    """The user's checks of replays in directory `results`, by method, and a line if they are unreadable."""
    try:
        return checks_in(results / "validation"), []
    except UserError as error:
        return {}, [f"checks of replays: {error}"]


def _results(run: Run) -> Path:
    return run.directory.path.resolve().parent.parent


def runs_on_clusters(
    runs: Sequence[Run],
    profiles: Sequence[ClusterProfile],
    nodes: Sequence[int] = (),
    redeal: "Redeal | None" = None,
    tell: Callable[[int, int], None] | None = None,
) -> tuple[list[list[Run]], list[str]]:
    """The `runs` on the clock of each of `profiles`, and a line for each finished run that has no clock there.

    Unfinished runs stay as they are, so that a report can count them. All runs without a trace share a line.

    redeal: gives a run on another number of nodes. Each run on the most nodes is then also replayed on those of
    `nodes` on which it was never run.
    tell: called with the number of runs done and of all runs, as the replays proceed.
    """
    from istbench.cluster.trace_file import load_trace

    on_clusters: list[list[Run]] = [[] for _ in profiles]
    problems: list[str] = []
    untraced: list[str] = []
    checks: dict[Path, Mapping[str, Check]] = {}
    for number, run in enumerate(runs, start=1):
        cell = run.header.cell
        if tell is not None:
            tell(number, len(runs))
        if not run.done:
            for found in on_clusters:
                found += [run, *_misses_there(run, runs, nodes)]
            continue
        if not run.directory.trace.exists():
            untraced.append(cell)
            continue
        try:
            trace = load_trace(run.directory.trace)
        except UserError as error:
            problems.append(f"{cell}: {error}")
            continue
        results = _results(run)
        if results not in checks:
            checks[results], unreadable = own_checks(results)
            problems += unreadable
        own = partial(run_on_cluster, run, trace, checks=checks[results])
        problems += _add(on_clusters, profiles, cell, own)
        for count in _never_run(run, runs, nodes):
            assert redeal is not None
            named = f"{cell} on {count} nodes"
            try:
                there_too, dealt = redeal(run, trace, count)
            except UserError as error:
                problems.append(f"{named}: {error}")
            else:
                own = partial(run_on_cluster, there_too, dealt, checks=checks[results])
                problems += _add(on_clusters, profiles, named, own)
    if untraced:
        more = f" and {len(untraced) - _NAMED_AT_MOST} more" if len(untraced) > _NAMED_AT_MOST else ""
        problems.append(
            f"no trace to replay, which takes two whole rounds of training: "
            f"{', '.join(untraced[:_NAMED_AT_MOST])}{more}"
        )
    return on_clusters, problems


def under_faults(run: Run, faults: "Faults") -> Run:
    """`run`, on the clock of a cluster, with the mean seconds that its evaluations take with `faults`."""
    from istbench.cluster.faults import expected_seconds

    seconds = expected_seconds(run.curve.seconds, run.header.nodes, faults)
    return dataclasses.replace(run, curve=run.curve.on_clock("cluster_s", seconds))


def add_shares(
    on_clusters: Sequence[list[Run]], runs: Sequence[Run], profiles: Sequence[ClusterProfile], shares: Shares
) -> list[str]:
    """Add to each list of `on_clusters` the `runs` as if their nodes had `shares` of the samples.

    Shares without numbers are the speeds of the cluster. Returns a line for each run that cannot have them.
    """
    from istbench.cluster.trace_file import load_trace

    def shared(run: Run, trace: "Trace", profile: ClusterProfile) -> Run:
        return run_on_cluster(*_with_shares(run, trace, profile, shares), profile)

    problems: list[str] = []
    for run in runs:
        if run.done and run.header.nodes > 1 and run.directory.trace.exists():
            try:
                trace = load_trace(run.directory.trace)
            except UserError as error:
                problems.append(f"{run.header.cell}: {error}")
            else:
                problems += _add(on_clusters, profiles, run.header.cell, partial(shared, run, trace))
    # A seed that diverged is a miss of the row with shares too.
    missed = [_labelled(run, shares, shares.speeds) for run in runs if run.diverged]
    for found in on_clusters:
        supposed = [run for run in found if run.supposed_shares]
        found += [run for run in missed if any(_row(run) == _row(own) for own in supposed)]
    return problems


def _with_shares(run: Run, trace: "Trace", profile: ClusterProfile, shares: Shares) -> "tuple[Run, Trace]":
    """`run` and `trace` with the computing of each node by its samples, of those that it had.

    Raises:
        UserError: for shares of another number of nodes, those that it had, or a method that divides no samples.
    """
    from istbench.cluster.repeated_nodes import by_work

    header = run.header
    if header.takes_shares != "samples":
        raise UserError(f"{header.method} has no samples to divide; train it with --shares if it takes them")
    shares.check(header.nodes, f"--shares {shares}")
    speeds = shares.speeds or profile.speeds_of(header.nodes)
    before, samples = (
        in_proportion(header.batch_size * header.nodes, by, least=1)
        for by in (run.shares or (1.0,) * header.nodes, speeds)
    )
    if before == samples:
        raise UserError(f"its nodes had the samples of --shares {shares}")
    parts = [own / had for own, had in zip(samples, before, strict=True)]
    return _labelled(run, shares, speeds), by_work(trace, parts)


def _labelled(run: Run, shares: Shares, speeds: Sequence[float]) -> Run:
    """`run` as one of the row with `shares`, which are those `speeds`."""
    header = run.header
    config = msgspec.structs.replace(header.config, shares=shares)
    label = f"{header.method_label.replace(f' shares={header.config.shares}', '')} shares={shares}"
    return dataclasses.replace(
        run,
        header=msgspec.structs.replace(header, method_label=label, config=config),
        shares=tuple(speeds),
        supposed_shares=True,
    )


def _add(
    on_clusters: Sequence[list[Run]],
    profiles: Sequence[ClusterProfile],
    named: str,
    on: Callable[[ClusterProfile], Run],
) -> list[str]:
    """Add the run that `on` gives on each of `profiles` to its list; a line for each reason why there is none."""
    refused: dict[str, list[tuple[str, str]]] = {}
    for found, profile in zip(on_clusters, profiles, strict=True):
        try:
            found.append(on(profile))
        except UserError as error:
            reason = str(error)
            refused.setdefault(reason.replace(profile.name, ""), []).append((profile.name, reason))
    lines = []
    for alike in refused.values():
        first, reason = alike[0]
        others = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        where = "" if len(alike) == len(profiles) else f" on {first}{others}"
        lines.append(f"{named}{where}: {reason}")
    return lines


def _never_run(run: Run, runs: Sequence[Run], nodes: Sequence[int]) -> list[int]:
    """Those of `nodes` on which no run like `run` is recorded; none if a run like it has more nodes."""
    if not nodes:
        return []
    recorded = {other.header.nodes for other in runs if other.done and _like(other) == _like(run)}
    return [count for count in nodes if count not in recorded] if run.header.nodes == max(recorded) else []


def _misses_there(run: Run, runs: Sequence[Run], nodes: Sequence[int]) -> list[Run]:
    """`run`, if it diverged, on those of `nodes` to which other seeds of its row are dealt: a miss there too."""
    if not nodes or not run.diverged:
        return []
    same = [other for other in runs if other.done and _row(other) == _row(run)]
    counts = dict.fromkeys(count for other in same for count in _never_run(other, runs, nodes))
    return [
        dataclasses.replace(
            run,
            header=msgspec.structs.replace(run.header, nodes=count),
            extrapolated_from=run.header.nodes,
        )
        for count in counts
    ]


def _row(run: Run) -> tuple[object, ...]:
    """The settings that all seeds of a row have."""
    return (*_settings(run), run.header.nodes)


def _like(run: Run) -> tuple[object, ...]:
    """The settings that a run has on any number of nodes."""
    return (*_settings(run), run.header.seed)


def _settings(run: Run) -> tuple[str, str, int, str, str]:
    header = run.header
    return (
        header.workload_label, header.method_label, header.batch_size, header.budget,
        header.data_source.comparable,
    )  # fmt: skip
