"""What faults cost each method, as a table, a sentence and a JSON object."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from istbench.base.units import period_text
from istbench.report.faulty_runs import FaultResults, FaultRow, FaultyRun
from istbench.report.phrases import Lead, count_nodes, guide_line, joined
from istbench.report.tables.numbers import finite, number, rounded, with_interval
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Table, column, table_of
from istbench.results.fault_record import OF_LINKS, Wall
from istbench.results.metrics import level_text

_PARTS = {
    "computing_s": "computing",
    "waiting_s": "waiting",
    "fewer_s": "fewer nodes",
    "lost_s": "lost",
    "noticing_s": "noticing",
    "restarting_s": "restarting",
    "checkpointing_s": "check- pointing",
}


def faults_table(found: FaultResults) -> Table:
    """A row for each method, number of nodes and schedule."""
    header = found.first.header
    target = header.config.target
    goal = "the end" if target is None else f"{header.metric} {level_text(target)}"

    def part(key: str, title: str) -> ColumnOf[FaultRow]:
        return column(key, title, lambda row: _wall_mean(row, lambda wall: getattr(wall, key)))

    columns: list[ColumnOf[FaultRow]] = [
        column("method", "method", lambda row: row.label, align="left"),
        column("nodes", "nodes", lambda row: row.nodes),
        column("faults", "faults a run", _rate),
        column("hits", "hit", _hits),
        column("reached", "reached", lambda row: Entry(text=_of_all(row), value=row.reached)),
        column("seconds", "s", lambda row: _wall_mean(row, lambda wall: wall.to_target_s)),
        column("times", "times as long", _times),
        column("simulated_times", "simulated", lambda row: rounded(row.simulated)),
        *(part(key, title) for key, title in _PARTS.items() if key != "fewer_s" or found.elastic),
    ]
    return table_of(
        columns,
        found.rows,
        title=f"{header.workload_label}: wall seconds to {goal} with faults",
        footer=tuple(_footer(found)),
        keys=3,
    )


def faults_answer(found: FaultResults) -> str:
    """The methods that lose least and most at the highest rate, and those that missed the target."""
    last = [row for row in found.rows if row.schedule == found.rows[-1].schedule]
    rows = [row for row in last if math.isfinite(row.times.median)]
    missed = [_missed(row) for row in last if row not in rows]
    if not rows:
        some = any(row.reached for row in last)
        return f"{joined(missed)}." if some else "No run with faults reached its target."
    least, most = (end(rows, key=lambda row: row.times.median) for end in (min, max))
    end = f", measured; {joined(missed)}." if missed else ", measured."
    where, taken = f"with {_rate_words(least)}", f"{number(least.times.median)} times its seconds without faults"
    if least is most:
        return f"{_place(least)} takes {taken} {where}{end}"
    more = f"{_place(most)} {number(most.times.median)} times"
    return f"{_place(least)} loses least {where}: it takes {taken}, {more}{end}"


def faults_record(found: FaultResults, problems: Sequence[str]) -> dict[str, Any]:
    """The object that `--json` prints."""
    return {
        "rows": [
            {
                "method": row.label,
                "nodes": row.nodes,
                "faults": 0.0 if row.schedule is None else row.schedule.rate,
                "every_s": None if row.schedule is None else row.schedule.every_s,
                "schedule": None if row.schedule is None else row.schedule.text,
                "reached": row.reached,
                "times": finite(row.times.median),
                "simulated_times": row.simulated,
                "runs": [_run_record(own) for own in row.runs],
            }
            for row in found.rows
        ],
        "problems": list(problems),
    }


def _run_record(own: FaultyRun) -> dict[str, Any]:
    wall = None if own.wall is None else {**dataclasses.asdict(own.wall), "seconds": own.wall.seconds}
    return {
        "cell": own.cell,
        "seed": own.seed,
        "times": finite(own.times),
        "wall": wall,
        "restart_s": own.restart_s,
        "simulated_times": own.simulated,
        "hits": msgspec.to_builtins(own.hits),
        "failure": own.failure or None,
    }


def _rate(row: FaultRow) -> Entry:
    rate = 0 if row.schedule is None else row.schedule.rate
    return Entry(text=row.short, value=row.short if rate is None else rate)


def _rate_words(row: FaultRow) -> str:
    assert row.schedule is not None
    rate, every_s = row.schedule.rate, row.schedule.every_s
    if rate is not None:
        return f"{rate:g} fault{'' if rate == 1 else 's'} a run"
    return "the faults of the list" if every_s is None else f"a fault every {period_text(every_s)}"


def _place(row: FaultRow) -> str:
    return f"{row.label} on {count_nodes(row.nodes)}"


def _missed(row: FaultRow) -> str:
    some = f"reached its target in {_of_all(row)} runs"
    return f"{_place(row)} {some if row.reached else 'did not reach its target'}"


def _of_all(row: FaultRow) -> str:
    return f"{row.reached} of {len(row.runs)}"


def _times(row: FaultRow) -> Entry:
    return Entry(text=with_interval(row.times, number), value=finite(row.times.median))


def _wall_mean(row: FaultRow, of: Callable[[Wall], float]) -> Entry:
    """The mean of a figure over the runs that reached the target."""
    values = [of(own.wall) for own in row.runs if own.wall is not None]
    return rounded(statistics.mean(values)) if values else NOTHING


def _hits(row: FaultRow) -> Entry:
    return rounded(statistics.mean(len(own.hits) for own in row.runs))


def _footer(found: FaultResults) -> list[str]:
    header, schedules = found.first.header, [row.schedule for row in found.rows if row.schedule is not None]
    lab = header.config.lab
    where = f"in a lab, {lab.summary}" if lab else "without a lab"
    kinds = {kind for schedule in schedules for kind in schedule.kinds}
    slowed = (
        f" Clocks are divided by {lab.dilation:g}, by which the lab is slower." if lab and lab.dilation > 1 else ""
    )
    lines = [
        Lead(
            f"Measured on {header.host.name}, {where}.{slowed} One schedule for all methods: faults a run are "
            "those in the train seconds of the row without faults, on average. Types: "
            f"{', '.join(sorted(kinds))}."
        ),
        "Times as long: median over seeds, of wall seconds to the target without evaluations. The parts are means "
        "of the runs that reached it, and add up to the seconds. Waiting: train seconds beyond those without "
        "faults.",
        "Simulated: as by `istbench replay --mtbf`, for as many faults that end all nodes as hit the run, and the "
        "measured seconds of a restart. Other faults delay nodes, and neither they nor fewer nodes are simulated.",
        guide_line("faults.md#measured-faults"),
    ]
    if not lab:
        links = ", ".join(OF_LINKS)
        lines.append(f"Without a lab, no link fails: {links} need `istbench lab ... -- faults` (root).")
    return lines
