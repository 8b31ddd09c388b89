"""The one table that a terminal shows of a study: its rows on all clocks, the fastest first."""

import math
from collections.abc import Sequence
from functools import partial

from istbench.base.options.defaults import BASELINE
from istbench.report.answer import main_target
from istbench.report.groups import Contender, RunGroup
from istbench.report.tables.comparison import (
    EXTRAPOLATED,
    RANGE,
    cost,
    dollars_to,
    seconds_to,
    seconds_to_the_end,
    soonest,
    speed_up,
)
from istbench.report.tables.comparison_footer import comparison_footer
from istbench.report.tables.group_columns import NAMING
from istbench.report.tables.table import NOTHING, ColumnOf, EntryOrValue, Table, table_of
from istbench.report.targets import Target

_LEAST = 1000  # above the ranks of clocks and easier targets
_Row = list[Contender | None]  # in each of the groups


def overview(groups: Sequence[RunGroup], baseline: str = BASELINE) -> Table:
    """A row for each method and number of nodes, with its seconds to the main target of the first of `groups`.

    groups: those of a study, each on its clock or machine. The first sorts the rows; the columns that are not
    seconds are its own.
    """
    first = groups[0]
    target = main_target(first)
    rows: dict[tuple[str, int], _Row] = {}
    for place, group in enumerate(groups):
        for contender in group.contenders:
            rows.setdefault((contender.label, contender.nodes), [None] * len(groups))[place] = contender
    to = "" if target is None else f" to {target.of(first.metric)}"
    what = f"seconds{to}" if len(groups) > 1 else f"{first.clock_words}{to} on {first.machine}"
    return table_of(
        _columns(groups, target, baseline),
        sorted(rows.values(), key=partial(_order, target)),
        title=f"{first.workload_label}: {what}, the fastest first",
        footer=comparison_footer(groups, baseline),
        keys=len(NAMING),
    )


def _order(target: Target | None, row: _Row) -> tuple[float, float]:
    """Sorts by the seconds on the first clock."""
    first = row[0]
    return (math.inf, math.inf) if first is None or target is None else soonest(first, target)


def _columns(groups: Sequence[RunGroup], target: Target | None, baseline: str) -> list[ColumnOf[_Row]]:
    """The columns; the order of their ranks is that in which readers need them."""
    first, *others = groups
    naming = [_in_group(None, column) for column in (*NAMING, EXTRAPOLATED)]
    costs = [_in_group(0, column, rank=_LEAST + place) for place, column in enumerate(cost(first)[:2])]
    if target is None:
        return [*naming, _in_group(0, seconds_to_the_end(first)), *costs]
    main = _in_group(0, seconds_to(first, target))
    elsewhere = [
        _in_group(place, seconds_to(group, target), title=_where(group), rank=place + 1)
        for place, group in enumerate(others, start=1)
    ]
    if others and first.profile is not None:
        main = _in_group(0, seconds_to(first, target), title=_where(first))
        return [*naming, main, *elsewhere, *costs]
    easier = [
        _in_group(0, seconds_to(first, one), rank=_LEAST - place)
        for place, one in enumerate(first.targets, start=1)
        if one is not target
    ]
    more = [speed_up(first, baseline, [target]), *dollars_to(first, target), RANGE]
    return [*naming, *easier, main, *(_in_group(0, column, rank=1) for column in more), *elsewhere, *costs]


def _where(group: RunGroup) -> str:
    if group.profile is not None:
        return f"replayed on {group.profile.name}"
    return f"on {group.host.name}" + (f", {group.host.lab}" if group.host.lab else "")


def _in_group(place: int | None, column: ColumnOf[Contender], *, title: str = "", rank: int = 0) -> ColumnOf[_Row]:
    """`column` of the group at `place`; None for the first group that has the row."""

    def entry(row: _Row) -> EntryOrValue:
        found = next(one for one in row if one is not None) if place is None else row[place]
        return NOTHING if found is None else column.entry(found)

    return ColumnOf(
        key=f"{column.key} {place}",
        title=title or column.title,
        entry=entry,
        align=column.align,
        optional=column.optional,
        rank=rank,
    )
