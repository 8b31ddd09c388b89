"""The steps of a recorded script by several methods, on several numbers of nodes and clusters."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from istbench.base.errors import UserError
from istbench.cluster.profile import ClusterProfile, bandwidth_text
from istbench.cluster.script_record import ScriptRecord
from istbench.cluster.trace import Trace
from istbench.plan.script_time import ChosenMethod, ScriptTime, chosen_methods, script_time
from istbench.plan.script_trace import assumptions, methods_for, script_trace
from istbench.report.phrases import (
    Caution,
    Lead,
    count_nodes,
    counted_winners,
    joined,
    largest_error,
    replay_lines,
)
from istbench.report.report import Report
from istbench.report.tables.comparison_footer import node_line
from istbench.report.tables.numbers import number, percent, rounded
from istbench.report.tables.table import NOTHING, Column, ColumnOf, Entry, Table, column, grid_table, table_of

_MEGA = 1e6
_NAMED = 5
_DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class FastestMap:
    """The steps of `record` by all methods: for each row, those at each bandwidth, rising.

    cluster: its name without links. by: the rows, `nodes` or `latency`. assumed: phrases about the figures.
    """

    record: ScriptRecord
    cluster: str
    by: str
    rows: Mapping[str, Sequence[Sequence[ScriptTime]]]
    assumed: Sequence[str]

    @property
    def answers(self) -> tuple[str, ...]:
        """The answer: the fastest methods with the number of their cells, among whom, and that it is a replay."""
        cells = [times for row in self.rows.values() for times in row if times]
        methods = dict.fromkeys(time.method for times in cells for time in times)
        return (
            f"The most samples per second{_of_methods(methods)}: "
            f"{counted_winners([_fastest(times)[0].method for times in cells], len(cells))}. Replayed on "
            f"{self.cluster}, from one recorded step, never run by these methods.",
        )

    def records(self) -> list[dict[str, Any]]:
        """All cells as JSON values."""
        return [
            {
                "cluster": times[0].time.profile.name,
                "bandwidth": _bandwidth(times),
                "latency_s": times[0].time.profile.latency_s,
                "nodes": times[0].nodes,
                **_value(times),
            }
            for row in self.rows.values()
            for times in row
            if times
        ]

    def table(self) -> Table:
        """A row for each value of the other axis, and a column for each bandwidth."""
        first = next(iter(self.rows.values()))
        everything = [time for row in self.rows.values() for times in row for time in times]
        profile = everything[0].time.profile
        nodes = "" if self.by == "nodes" else f", {everything[0].nodes} nodes"
        return grid_table(
            Column(key=self.by, title=self.by),
            [bandwidth_text(_bandwidth(times), _DIGITS) for times in first],
            [(name, [_entry(times) for times in row]) for name, row in self.rows.items()],
            title=f"{self.record.script} on {self.cluster}{nodes}: the most samples per second, replayed",
            footer=(
                *(Caution(_sentence(line)) for line in self.assumed),
                Lead("An entry: the fastest method, its samples/s over those of one node, the lead over the next."),
                Lead(f"A node of the first column: {node_line(profile)}."),
                *replay_lines([time.time for time in everything], profile),
            ),
        )


def script_report(
    record: ScriptRecord,
    profiles: Sequence[ClusterProfile],
    nodes: Sequence[int],
    methods: Sequence[str] = (),
    assumed: Sequence[str] = (),
) -> Report:
    """A table for each of `profiles`. methods: as typed; by default all whose messages follow from sizes, without
    those that cannot train such a script. assumed: phrases about the clusters.

    A method that cannot train the recorded model, or has too many messages, is a problem of the report.

    Raises:
        UserError: if none can, for a typed method that is unknown, or whose messages need more than sizes.
    """
    traces, problems = _traces(record, nodes, methods)
    times = [[script_time(record, method, trace, profile) for method, trace in traces] for profile in profiles]
    on_each = list(zip(profiles, times, strict=True))
    said = (*assumptions(record), *assumed)
    return Report(
        answers=tuple(_steps_sentence(record, profile, own) for profile, own in on_each),
        tables=tuple(_steps_table(record, profile, own, said) for profile, own in on_each),
        problems=problems,
    )


def script_map(
    record: ScriptRecord,
    families: Mapping[str, Sequence[ClusterProfile]],
    nodes: Sequence[int],
    methods: Sequence[str] = (),
    assumed: Sequence[str] = (),
    by: str = "nodes",
) -> tuple[FastestMap, tuple[str, ...]]:
    """The fastest method at each bandwidth, by numbers of nodes or by latency; and problems as in `script_report`.

    families: profiles by rising bandwidth, one; with `by` latency one for each latency, on one number of nodes.

    Raises:
        UserError: as `script_report` does.
    """
    traces, problems = _traces(record, nodes, methods)
    rows = {}
    for family in families.values():
        for count in nodes:
            row = f"{family[0].latency_s * 1e3:g} ms" if by == "latency" else str(count)
            rows[row] = tuple(
                tuple(
                    script_time(record, method, trace, profile)
                    for method, trace in traces
                    if trace.world_size == count
                )
                for profile in family
            )
    rows = {row: cells for row, cells in rows.items() if any(cells)}  # no method may fit a number of nodes
    cluster = next(iter(families)).partition(" with ")[0]
    found = FastestMap(record=record, cluster=cluster, by=by, rows=rows, assumed=(*assumptions(record), *assumed))
    return found, problems


def _traces(
    record: ScriptRecord, nodes: Sequence[int], methods: Sequence[str]
) -> tuple[list[tuple[ChosenMethod, Trace]], tuple[str, ...]]:
    """A trace for each method and number of nodes, and a line for each method that has none there."""
    chosen = chosen_methods(methods)
    traces: list[tuple[ChosenMethod, Trace]] = []
    problems: dict[str, None] = {}
    for method in chosen or methods_for(record):
        for count in nodes:
            try:
                traces.append((method, script_trace(record, method, count)))
            except UserError as error:
                if len(chosen) == 1:
                    raise
                problems[f"{method.label}: {error}"] = None
    if not traces:
        raise UserError(f"nothing to replay of {record.script}: {next(iter(problems))}")
    return traces, tuple(problems)


def _fastest(times: Sequence[ScriptTime]) -> list[ScriptTime]:
    return sorted(times, key=lambda time: time.step_s)


def _bandwidth(times: Sequence[ScriptTime]) -> float:
    """Bits/s of the link of a host."""
    profile = times[0].time.profile
    return profile.bandwidth_out / profile.payload


def _value(times: Sequence[ScriptTime]) -> dict[str, Any]:
    first, *others = _fastest(times)
    return {
        "winner": first.method,
        "local_steps": first.local_steps,
        "step_s": first.step_s,
        "samples_over_one_node": _over_one(first),
        "over_next": others[0].step_s / first.step_s if others else None,
    }


def _entry(times: Sequence[ScriptTime]) -> Entry:
    if not times:
        return NOTHING
    value = _value(times)
    lead = "" if value["over_next"] is None else f", by {value['over_next'] - 1:.1%}"
    return Entry(text=f"{value['winner']} {number(value['samples_over_one_node'])}×{lead}", value=value)


def _of_methods(methods: Collection[str]) -> str:
    """` of ddp, zero and fsdp`, or ` of 12 methods`; empty for a single one."""
    if len(methods) < 2:
        return ""
    return f" of {joined(methods)}" if len(methods) <= _NAMED else f" of {len(methods)} methods"


def _steps_sentence(record: ScriptRecord, profile: ClusterProfile, times: Sequence[ScriptTime]) -> str:
    """The answer of `_steps_table`: the method and nodes with the most samples per second, or one machine."""
    if not times:
        return f"No method can train {record.script} on these nodes."
    first = max(times, key=lambda time: time.nodes / time.step_s)
    methods, nodes = dict.fromkeys(time.method for time in times), sorted({time.nodes for time in times})
    faster = _over_one(first)
    on = f" on {joined(map(str, nodes))} nodes" if len(nodes) > 1 else ""
    alone = "One machine is enough: one node is faster than all. Of the others, " if faster <= 1 else ""
    return (
        f"{alone}{first.method} on {count_nodes(first.nodes)} trains the most samples per "
        f"second{_of_methods(methods)}{on}, {number(faster)} times those of one node"
        f"{_too_close(first, times)}. Replayed on {profile.name} from one recorded step, never run by these "
        "methods."
    )


def _too_close(first: ScriptTime, times: Iterable[ScriptTime]) -> str:
    """`; fsdp on 2 nodes is too close to call`: rows within the errors of replays in a lab; empty without any."""
    most = first.step_s / first.nodes * (1 + largest_error([first.time]))
    close = [
        time
        for time in times
        if time is not first and time.step_s / time.nodes * (1 - min(largest_error([time.time]), 1)) <= most
    ]
    if not close:
        return ""
    few = joined(f"{time.method} on {count_nodes(time.nodes)}" for time in close)
    names = few if len(close) <= _NAMED else f"{len(close)} other rows"
    return f"; {names} {'is' if len(close) == 1 else 'are'} too close to call"


def _steps_table(
    record: ScriptRecord, profile: ClusterProfile, times: Sequence[ScriptTime], assumed: Iterable[str]
) -> Table:
    """The steps of `record` by each method and number of nodes on `profile`, the fastest first."""
    times = sorted(times, key=lambda time: (time.nodes, time.step_s))
    columns: tuple[ColumnOf[ScriptTime], ...] = (
        column("method", "method", lambda time: time.method, align="left"),
        column("nodes", "nodes", lambda time: time.nodes),
        column("local_steps", "local steps", lambda time: time.local_steps),
        column("step_s", "s per step", lambda time: rounded(time.step_s)),
        column("step_range_s", "range", _range, optional=True),
        column("samples_over_one_node", "samples/s over one node", lambda time: rounded(_over_one(time))),
        column("computing", "computing", lambda time: percent(time.time.compute)),
        column("communication", "communication", lambda time: percent(time.time.communication)),
        column("sent_mb_per_step", "MB sent per node and step", lambda time: rounded(time.sent / _MEGA)),
    )
    alone = times[0].alone_s if times else None
    doubt = record.machine.doubt
    return table_of(
        columns,
        times,
        title=f"{record.script} on {profile.name}: seconds of a step, replayed, never run by these methods",
        footer=(
            *(Caution(_sentence(line)) for line in assumed),
            Lead(f"A node: {node_line(profile)}."),
            *([f"One node alone: {number(alone)} s per step."] if alone else []),
            *replay_lines([time.time for time in times], profile),
            *([Caution(f"Careful: {doubt}.")] if doubt else []),
        ),
        keys=2,
        empty="No method can train it on these nodes.",
        context={"script": record.script, "cluster": profile.name},
    )


def _range(time: ScriptTime) -> Entry:
    low, high = time.time.low, time.time.high
    if low is None or high is None:
        return NOTHING
    ends = {"low": low * time.step_s, "high": high * time.step_s}
    return Entry(text=f"{number(ends['low'])}–{number(ends['high'])}", value=ends)


def _over_one(time: ScriptTime) -> float:
    """Samples per second over those of one node."""
    return time.nodes * time.alone_s / time.step_s


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
