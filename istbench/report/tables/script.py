"""Tables of a recorded script: its step, and its steps by several methods on a cluster."""

import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from istbench.cluster.clock import ClusterTime
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.script_record import ScriptRecord
from istbench.report.phrases import Caution, Lead, checks_line, count_nodes, joined, scaling_lines, sustained_line
from istbench.report.tables.comparison_footer import node_line
from istbench.report.tables.numbers import number, rounded
from istbench.report.tables.table import NOTHING, Column, ColumnOf, Entry, Scalar, Table, plain, table_of

_MEGA = 1e6
_NAMED = 5


class StepTime(Protocol):
    """A step by a method on some nodes of a cluster: `istbench.plan.script_time.ScriptTime`."""

    @property
    def method(self) -> str: ...
    @property
    def nodes(self) -> int: ...
    @property
    def local_steps(self) -> int: ...
    @property
    def step_s(self) -> float: ...
    @property
    def alone_s(self) -> float: ...
    @property
    def sent(self) -> float: ...
    @property
    def time(self) -> ClusterTime: ...


def record_table(record: ScriptRecord, file: Path) -> Table:
    """The step of `record`, an item in each row."""
    trained = [own for own in record.parameters if own.trained]
    ready = [own.ready_s for own in trained if own.ready_s is not None]
    values = sum(math.prod(own.shape) for own in trained)
    rows: list[tuple[str, str, Scalar]] = [
        ("seconds per step", number(record.step_s), record.step_s),
        ("steps timed", str(len(record.samples_s)), len(record.samples_s)),
        ("spread of their seconds", f"{number(min(record.samples_s))}–{number(max(record.samples_s))}", None),
        ("trained parameters", f"{values:,} in {len(trained)} tensors", values),
        ("MB of gradients", number(record.gradient_bytes / _MEGA), record.gradient_bytes / _MEGA),
    ]
    if ready:
        rows.append(("gradients ready after", f"{number(min(ready))}–{number(max(ready))} s", max(ready)))
    rows.append(("seconds of the optimizer", number(record.update_s), record.update_s))
    if record.backward_passes > 1:
        rows.append(("backward passes per step", str(record.backward_passes), record.backward_passes))
    peak = record.peak_bytes
    if peak is not None:
        rows.append(("MB of memory at the peak", number(peak / _MEGA), peak / _MEGA))
    if record.machine.work is not None:
        operations = record.machine.work.operations / 1e9
        rows.append(("GFLOP of matrix products", number(operations), operations))
    doubt = record.machine.doubt
    return Table(
        title=f"{record.script}: a step on {_machine(record)}",
        columns=(Column(key="item", title="", align="left"), Column(key="value", title="", align="left")),
        rows=tuple((plain(name), Entry(text=text, value=value)) for name, text, value in rows),
        footer=(
            *(_sentence(note) for note in record.notes),
            *([Caution(f"Careful: {doubt}.")] if doubt else []),
            f"Recorded in {file}. By other methods: `istbench replay {file} --nodes 2,4 --bandwidth 100mbit,1gbit`",
        ),
        keys=0,
    )


def of_methods(methods: Collection[str]) -> str:
    """` of ddp, zero and fsdp`, or ` of 12 methods`; empty for a single one."""
    if len(methods) < 2:
        return ""
    return f" of {joined(methods)}" if len(methods) <= _NAMED else f" of {len(methods)} methods"


def steps_sentence(record: ScriptRecord, profile: ClusterProfile, times: Sequence[StepTime]) -> str:
    """The answer of `steps_table`: the method and nodes with the most samples per second, or one machine."""
    if not times:
        return f"No method can train {record.script} on these nodes."
    first = max(times, key=lambda time: time.nodes / time.step_s)
    methods, nodes = dict.fromkeys(time.method for time in times), sorted({time.nodes for time in times})
    faster = first.nodes * first.alone_s / first.step_s
    on = f" on {joined(map(str, nodes))} nodes" if len(nodes) > 1 else ""
    alone = "One machine is enough: one node is faster than all. Of the others, " if faster <= 1 else ""
    return (
        f"{alone}{first.method} on {count_nodes(first.nodes)} trains the most samples per "
        f"second{of_methods(methods)}{on}, {number(faster)} times those of one node. Replayed on {profile.name} "
        "from one recorded step, never run by these methods."
    )


def steps_table(
    record: ScriptRecord, profile: ClusterProfile, times: Sequence[StepTime], assumed: Iterable[str]
) -> Table:
    """The steps of `record` by each method and number of nodes on `profile`, the fastest first."""
    times = sorted(times, key=lambda time: (time.nodes, time.step_s))
    columns: tuple[ColumnOf[StepTime], ...] = (
        ColumnOf(key="method", title="method", entry=lambda time: time.method, align="left"),
        ColumnOf(key="nodes", title="nodes", entry=lambda time: time.nodes),
        ColumnOf(key="local_steps", title="local steps", entry=lambda time: time.local_steps),
        ColumnOf(key="step_s", title="s per step", entry=lambda time: rounded(time.step_s)),
        ColumnOf(key="step_range_s", title="range", entry=_range, optional=True),
        ColumnOf(key="samples_over_one_node", title="samples/s over one node", entry=_over_one),
        ColumnOf(key="computing", title="computing", entry=lambda time: _percent(time.time.compute)),
        ColumnOf(key="communication", title="communication", entry=lambda time: _percent(time.time.communication)),
        ColumnOf(key="sent_mb_per_step", title="MB sent per node", entry=lambda time: rounded(time.sent / _MEGA)),
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
            *sustained_line(profile),
            *scaling_lines([time.time for time in times], profile),
            *checks_line(time.time for time in times),
            *([Caution(f"Careful: {doubt}.")] if doubt else []),
        ),
        keys=2,
        empty="No method can train it on these nodes.",
        context={"script": record.script, "cluster": profile.name},
    )


def _range(time: StepTime) -> Entry:
    low, high = time.time.low, time.time.high
    if low is None or high is None:
        return NOTHING
    ends = {"low": low * time.step_s, "high": high * time.step_s}
    return Entry(text=f"{number(ends['low'])}–{number(ends['high'])}", value=ends)


def _over_one(time: StepTime) -> Entry:
    return rounded(time.nodes * time.alone_s / time.step_s)


def _percent(share: float) -> Entry:
    return Entry(text=f"{share:.0%}", value=share)


def _machine(record: ScriptRecord) -> str:
    gpu = record.environment.get("gpu")
    if gpu is not None:
        return gpu
    threads = record.machine.threads or 1
    return f"{threads} thread{'s' if threads > 1 else ''} of this machine"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
