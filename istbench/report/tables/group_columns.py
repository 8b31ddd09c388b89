"""Columns, footer lines and context that the tables of a group share."""

from collections.abc import Iterable, Sequence
from typing import Any

from istbench.report.groups import Contender, RunGroup
from istbench.report.phrases import Lead, close_targets_line, metric_line
from istbench.report.tables.table import ColumnOf, Entry, Scalar, Table, column, table_of

NAMING: tuple[ColumnOf[Contender], ...] = (
    column("method", "method", lambda row: Entry(text=row.name, value=row.label), align="left"),
    column("nodes", "nodes", lambda contender: contender.nodes),
)
"""The columns that name the row of a contender."""


def shared_line(group: RunGroup) -> list[str]:
    """A line of a footer: the options that all rows share and their names leave out."""
    return [Lead(f"All rows: {' '.join(group.shared)}.")] if group.shared else []


def target_lines(group: RunGroup) -> Iterable[str]:
    """Lines of a footer on times to targets: `shared_line`, the metric, and targets that are too close."""
    yield from shared_line(group)
    own = all(run.header.metric == group.metric.name for run in (*group.runs, *group.unfinished))
    yield from metric_line(group.metric, own=own)
    yield from close_targets_line(group.close_targets, group.evaluation_error)


def group_table(
    group: RunGroup, baseline: str, columns: Iterable[ColumnOf[Contender]], rows: Sequence[Contender], **fields: Any
) -> Table:
    """The table of `rows` of `group`, which `NAMING` names. `fields` are as in `table_of`."""
    context = group_context(group, baseline)
    return table_of([*NAMING, *columns], rows, keys=len(NAMING), context=context, **fields)


def group_context(group: RunGroup, baseline: str) -> dict[str, Scalar]:
    """Fields for programs that hold for every row of a group."""
    return {
        "workload": group.workload,
        "workload_label": group.workload_label,
        "metric": group.metric.name,
        "lower_is_better": group.metric.lower_is_better,
        "metric_unit": group.metric.unit or None,
        "data": group.data,
        "data_seen": group.source.seen,
        "data_fingerprint": group.source.comparable,
        "batch_size": group.batch_size,
        "budget": group.budget,
        "host": group.host.name if group.profile is None else group.profile.name,
        "cores": group.host.cores if group.profile is None else None,
        "machine": (group.host.machine or None) if group.profile is None else None,
        "lab": group.host.lab if group.profile is None else None,
        "device": group.device,
        "clock": group.clock,
        "timing_rule": group.timing_rule,
        "baseline": baseline,
    }
