"""The table of a group: how long to each target, at what cost."""

import math
from collections.abc import Iterable

from istbench.cluster.clock import dollars
from istbench.cluster.profile import ClusterProfile, bandwidth_text
from istbench.config.defaults import BASELINE
from istbench.report.groups import Contender, Group
from istbench.report.phrases import count_nodes, data_line, data_name
from istbench.report.tables.table import (
    Column,
    Entry,
    NumberForm,
    Scalar,
    Table,
    finite,
    interval,
    machine_value,
    number,
    plain,
)  # fmt: skip
from istbench.results.stats import Estimate, SpeedUp, estimate, interval_name, speed_up

_METRIC_FORM = NumberForm(decimals=3)
_NUMBER_FORM = NumberForm()
_NOTHING = Entry(text="–", value=None)
_MEGA = 1e6


def comparison(group: Group, baseline: str = BASELINE) -> Table:
    """The main table of a group: a row for each method and number of nodes.

    baseline: method or method label that speed-ups are against, on as many nodes.
    """
    with_memory = any(contender.result("peak_memory_bytes_per_node") for contender in group.contenders)
    columns = [
        Column(key="method", title="method", align="left"),
        Column(key="nodes", title="nodes"),
        Column(key="seeds", title="seeds"),
        *(Column(key=f"{group.clock}_to_{level:g}", title=f"seconds to {level:g}") for level in group.levels),
        Column(key="speed_up", title=f"speed-up over {baseline}"),
        Column(key=f"final_{group.metric}", title=f"final {group.metric}"),
        Column(key="sent_mb_per_node", title="MB sent a node"),
        *([Column(key="peak_memory_mb_per_node", title="peak MB a node")] if with_memory else []),
    ]
    rows = []
    for contender in group.contenders:
        memory = [_result(contender, "peak_memory_bytes_per_node")] if with_memory else []
        rows.append(
            (
                plain(contender.label),
                plain(contender.nodes),
                plain(len(contender.runs)),
                *(_time(group, contender, level) for level in group.levels),
                _speed_up(group, contender, baseline),
                _final(contender),
                _result(contender, "bytes_sent_per_node"),
                *memory,
            )
        )
    what = f"{group.clock_words} to {group.metric} on {group.machine}"
    return Table(
        title=f"{group.workload_label}, {data_name(group.data)}, {group.budget}: {what}",
        columns=tuple(columns),
        rows=tuple(rows),
        footer=tuple(_footer(group, baseline)),
        keys=2,
        context=group_context(group, baseline),
    )


def _time(group: Group, contender: Contender, level: float) -> Entry:
    found = estimate(list(contender.seconds(level).values()))
    value = machine_value(found)
    if group.profile is not None:
        value["dollars"] = finite(dollars(group.profile, contender.nodes, found.median))
    if found.reached == 0:
        return Entry(text=f"not reached in {number(contender.trained())}", value=value)
    count = "" if found.reached == found.seeds else f" {found.reached}/{found.seeds}"
    if math.isinf(found.median):
        return Entry(text=f"> {number(contender.trained())}{count}", value=value)
    return Entry(text=_NUMBER_FORM(found.median) + interval(found, _NUMBER_FORM) + count, value=value)


def _final(contender: Contender) -> Entry:
    # A final metric that is no number is the worst there is, not one to leave out.
    finals = [run.curve.final() for run in contender.runs]
    values = [-math.inf if final is None else final for final in finals]
    found = estimate(values)
    return Entry(text=_METRIC_FORM(found.median) + interval(found, _METRIC_FORM), value=_without_reached(found))


def _result(contender: Contender, name: str) -> Entry:
    values = [value / _MEGA for value in contender.result(name)]
    if not values:
        return _NOTHING
    found = estimate(values)
    return Entry(text=number(found.median), value=_without_reached(found))


def _without_reached(found: Estimate) -> dict[str, Scalar]:
    return {name: value for name, value in machine_value(found).items() if name in ("median", "low", "high")}


def baseline_of(group: Group, nodes: int, baseline: str) -> Contender | None:
    """The contender that `baseline` names on so many nodes; None where there is none, or several would fit."""
    there = [contender for contender in group.contenders if contender.nodes == nodes]
    fitting = [contender for contender in there if contender.label == baseline]
    if not fitting:
        fitting = [contender for contender in there if contender.method == baseline]
    return fitting[0] if len(fitting) == 1 else None


def _speed_up(group: Group, contender: Contender, baseline: str) -> Entry:
    against = baseline_of(group, contender.nodes, baseline)
    if against is None:
        return _NOTHING
    if against is contender:
        return Entry(text="baseline", value=None)
    missed = None
    for level in reversed(group.levels):
        found = speed_up(against.seconds(level), contender.seconds(level))
        if found is not None and found.ratio is not None:
            text = f"{number(found.ratio.median)}×{interval(found.ratio, _NUMBER_FORM)} to {level:g}"
            return Entry(text=text, value=_speed_up_value(found, level))
        if found is not None and found.baseline_missed and missed is None:
            missed = Entry(text=f"> budget to {level:g}", value=_speed_up_value(found, level))
    return missed or _NOTHING


def _speed_up_value(found: SpeedUp, level: float) -> dict[str, Scalar]:
    ratio = found.ratio
    return {
        "ratio": ratio.median if ratio else None,
        "low": finite(ratio.low) if ratio else None,
        "high": finite(ratio.high) if ratio else None,
        "to": level,
        "pairs": found.pairs,
        "baseline_missed": found.baseline_missed,
    }


def group_context(group: Group, baseline: str) -> dict[str, Scalar]:
    """What holds for every row of a group's tables, for programs."""
    return {
        "workload": group.workload,
        "workload_label": group.workload_label,
        "metric": group.metric,
        "data": group.data,
        "data_fingerprint": group.fingerprint,
        "batch_size": group.batch_size,
        "budget": group.budget,
        "host": group.host.name if group.profile is None else group.profile.name,
        "cores": group.host.cores if group.profile is None else None,
        "device": group.device,
        "clock": group.clock,
        "timing_rule": group.timing_rule,
        "baseline": baseline,
    }


def _footer(group: Group, baseline: str) -> Iterable[str]:
    yield data_line(group.data, group.fingerprint)
    if group.clock == "cluster_s":
        yield from _cluster_lines(group)
    else:
        yield (
            f"Clock: train seconds of the slowest node on {group.machine}, computing, exchanging and waiting, "
            f"without evaluation. Timing rule {group.timing_rule}."
        )
    cores = group.host.cores if group.profile is None else None
    crowded = group.device == "cpu" and cores and max(group.nodes, default=0) > cores
    if crowded and group.host.lab:
        yield (
            "More nodes than cores: compute and links were slowed down by nodes over cores alike, and seconds are "
            "divided by that."
        )
    elif crowded:
        yield (f"More nodes than cores: nodes took turns on {cores} cores, which separate machines would not.")
    yield (
        f"Budget: {group.budget} for every row, batch size {group.batch_size} a node. Tuning: none by "
        "istbench; each method has the workload's default settings for it, except options named beside it."
    )
    yield _entry_line(group)
    if group.contenders:
        yield _speed_up_line(group, baseline)
    yield from _versions_line(group)
    yield from _unfinished_lines(group)


def _cluster_lines(group: Group) -> Iterable[str]:
    yield (
        f"Clock: cluster_s, rounds of each run, recorded on {group.device}, replayed on {group.machine}. What a "
        "synchronous method learns does not depend on the machines' speed: accuracies are the runs' own."
    )
    if group.profile is not None:
        yield f"A node: {_node_line(group.profile)}."


def _node_line(profile: ClusterProfile) -> str:
    out, into = bandwidth_text(profile.bandwidth_out), bandwidth_text(profile.bandwidth_in)
    link = f"{out} out and in" if out == into else f"{out} out, {into} in"
    shared = "" if profile.full_duplex else " together"
    return f"{profile.gflops:g} GFLOP/s effective, {link}{shared}, {profile.latency_s * 1e6:g} µs to another node"


def _entry_line(group: Group) -> str:
    most = max((len(contender.runs) for contender in group.contenders), default=0)
    if most < 2:
        return "Entries: one seed, linearly interpolated between evaluations; no spread is known."
    kinds = {interval_name(len(contender.runs)) for contender in group.contenders if len(contender.runs) > 1}
    return (
        f"Entries: median over seeds [{' or '.join(sorted(kinds))}], linearly interpolated between "
        "evaluations. A seed that missed counts as infinite; k/n: so many of the seeds reached the target; "
        "> s: so few that the median lies beyond the s seconds trained."
    )


def _speed_up_line(group: Group, baseline: str) -> str:
    lacking = [nodes for nodes in group.nodes if baseline_of(group, nodes, baseline) is None]
    if lacking == list(group.nodes):
        return f"Speed-up: none, for want of one finished row of {baseline}; --baseline names another."
    some = f" None on {', '.join(map(str, lacking))} nodes, where there is no such row." if lacking else ""
    return (
        f"Speed-up: seconds of {baseline} over seconds of the row on as many nodes, paired by seed, to the "
        f"highest target that both reached; > budget: only {baseline} missed; –: the "
        f"row missed.{some}"
    )


def _versions_line(group: Group) -> Iterable[str]:
    runs = [run for contender in group.contenders for run in contender.runs]
    for name in ("istbench", "torch"):
        found = sorted({run.header.versions.get(name, "unknown") for run in runs})
        if len(found) > 1:
            yield f"Careful: these runs are of several versions of {name}: {', '.join(found)}."


def _unfinished_lines(group: Group) -> Iterable[str]:
    if not group.unfinished:
        return
    named = ", ".join(
        f"{run.header.method_label} on {count_nodes(run.header.nodes)} seed {run.header.seed} "
        f"({'unfinished' if run.header.status == 'running' else run.header.status})"
        for run in group.unfinished[:8]
    )
    more = f" and {len(group.unfinished) - 8} more" if len(group.unfinished) > 8 else ""
    yield f"Not counted: {len(group.unfinished)} of {_total(group)} runs: {named}{more}."


def _total(group: Group) -> int:
    return len(group.unfinished) + sum(len(contender.runs) for contender in group.contenders)
