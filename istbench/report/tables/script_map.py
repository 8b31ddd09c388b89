"""The fastest method for a recorded script at each bandwidth, by numbers of nodes or by latency."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from istbench.cluster.profile import bandwidth_text
from istbench.cluster.script_record import ScriptRecord
from istbench.report.phrases import Caution, Lead, checks_line, counted_winners, scaling_lines, sustained_line
from istbench.report.tables.comparison_footer import node_line
from istbench.report.tables.numbers import number
from istbench.report.tables.script import StepTime, of_methods
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Table, table_of

_DIGITS = 3
_Row = tuple[str, Sequence[Sequence[StepTime]]]


@dataclass(frozen=True, kw_only=True)
class FastestMap:
    """The steps of `record` by all methods: for each row, those at each bandwidth, rising.

    cluster: its name without links. by: the rows, `nodes` or `latency`. assumed: phrases about the figures.
    """

    record: ScriptRecord
    cluster: str
    by: str
    rows: Mapping[str, Sequence[Sequence[StepTime]]]
    assumed: Sequence[str]

    @property
    def answer(self) -> str:
        """The answer: the fastest methods with the number of their cells, among whom, and that it is a replay."""
        cells = [times for row in self.rows.values() for times in row if times]
        methods = dict.fromkeys(time.method for times in cells for time in times)
        return (
            f"The most samples per second{of_methods(methods)}: "
            f"{counted_winners([_fastest(times)[0].method for times in cells], len(cells))}. Replayed on "
            f"{self.cluster}, from one recorded step, never run by these methods."
        )

    def records(self) -> list[dict[str, Any]]:
        """All cells as JSON values."""
        cells = [times for row in self.rows.values() for times in row]
        return [{**_link(times), **_value(times)} for times in cells if times]

    def table(self) -> Table:
        """A row for each value of the other axis, and a column for each bandwidth."""
        first = next(iter(self.rows.values()))
        everything = [time for row in self.rows.values() for times in row for time in times]
        profile = everything[0].time.profile
        columns: list[ColumnOf[_Row]] = [
            ColumnOf(key=self.by, title=self.by, entry=lambda row: row[0]),
            *(
                ColumnOf(key=f"at {name}", title=name, align="left", entry=partial(_entry, place))
                for place, name in enumerate(_bandwidth(times) for times in first)
            ),
        ]
        nodes = "" if self.by == "nodes" else f", {everything[0].nodes} nodes"
        return table_of(
            columns,
            list(self.rows.items()),
            title=f"{self.record.script} on {self.cluster}{nodes}: the most samples per second, replayed",
            footer=(
                *(Caution(f"{line[:1].upper()}{line[1:]}.") for line in self.assumed),
                Lead("An entry: the fastest method, its samples/s over those of one node, the lead over the next."),
                Lead(f"A node of the first column: {node_line(profile)}."),
                *sustained_line(profile),
                *scaling_lines([time.time for time in everything], profile),
                *checks_line(time.time for time in everything),
            ),
        )


def _fastest(times: Sequence[StepTime]) -> list[StepTime]:
    return sorted(times, key=lambda time: time.step_s)


def _bandwidth(times: Sequence[StepTime]) -> str:
    profile = times[0].time.profile
    return bandwidth_text(profile.bandwidth_out / profile.payload, _DIGITS)


def _link(times: Sequence[StepTime]) -> dict[str, Any]:
    profile = times[0].time.profile
    return {
        "cluster": profile.name,
        "bandwidth": profile.bandwidth_out / profile.payload,
        "latency_s": profile.latency_s,
        "nodes": times[0].nodes,
    }


def _value(times: Sequence[StepTime]) -> dict[str, Any]:
    first, *others = _fastest(times)
    return {
        "winner": first.method,
        "local_steps": first.local_steps,
        "step_s": first.step_s,
        "samples_over_one_node": first.nodes * first.alone_s / first.step_s,
        "over_next": others[0].step_s / first.step_s if others else None,
    }


def _entry(place: int, row: _Row) -> Entry:
    times = row[1][place]
    if not times:
        return NOTHING
    value = _value(times)
    lead = "" if value["over_next"] is None else f", by {value['over_next'] - 1:.1%}"
    return Entry(text=f"{value['winner']} {number(value['samples_over_one_node'])}×{lead}", value=value)
