"""Published figures beside those of a group."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial

from istbench.report.groups import Contender, Group
from istbench.report.published import Figure
from istbench.report.tables.numbers import DIGITS, METRIC, NOTHING, machine_value, number, plain, with_interval
from istbench.report.tables.of_group import group_context
from istbench.report.tables.table import ColumnOf, Entry, Scalar, Table, fill
from istbench.results.curves import time_to_target
from istbench.results.stats import Estimate, estimate


def beside_published(group: Group, baseline: str, figures: Sequence[Figure]) -> Table | None:
    """A row for each of `figures` that one of the group's stands beside, or that is of another method or system.

    None where there is no such row.
    """
    of_workload = [figure for figure in figures if group.contenders and figure.is_of(group)]
    methods = {contender.method for contender in group.contenders}
    own = [figure for figure in of_workload if figure.method not in methods or _found(group, figure)]
    if not own:
        return None
    left_out = len(of_workload) - len(own)
    columns, rows = fill(_columns(group), own)
    notes = dict.fromkeys(figure.note for figure in own if figure.note)
    return Table(
        title=f"{group.workload_label}, {group.source.seen}: beside published figures, {group.clock_words} on "
        f"{group.machine}",
        columns=columns,
        rows=rows,
        footer=(
            "Ours: the same method with the options of the row, on as many nodes where the paper names them; "
            "other options, data and machines may differ. –: not published, or not run.",
            *(
                [f"Left out: {left_out} of these methods with other options or numbers of nodes."]
                if left_out
                else []
            ),
            *(f"Published: {note}." for note in notes),
        ),
        keys=4,
        context=group_context(group, baseline),
    )


def _columns(group: Group) -> list[ColumnOf[Figure]]:
    return [
        ColumnOf(key="paper", title="from", align="left", entry=lambda figure: plain(figure.paper)),
        ColumnOf(key="method", title="method", align="left", entry=lambda figure: plain(figure.label)),
        ColumnOf(key="nodes", title="nodes", entry=lambda figure: plain(figure.nodes) if figure.nodes else NOTHING),
        ColumnOf(key="what", title="what", align="left", entry=lambda figure: plain(_what(figure))),
        ColumnOf(key="published", title="published", entry=_published),
        ColumnOf(key="ours", title="ours", entry=partial(_ours, group)),
        ColumnOf(key="ours_over_published", title="ours / published", entry=partial(_ratio, group), optional=True),
    ]


def _what(figure: Figure) -> str:
    if figure.level is None:
        return f"final {figure.metric}"
    return f"seconds to {figure.metric} {figure.level:g}"


def _published(figure: Figure) -> Entry:
    if figure.seconds is not None:
        return Entry(text=number(figure.seconds), value=figure.seconds)
    return Entry(text="failed", value=None) if figure.value is None else plain(f"{figure.value:g}")


def _ours(group: Group, figure: Figure) -> Entry:
    found = _found(group, figure)
    if not found:
        return NOTHING
    form = DIGITS if figure.seconds is not None else METRIC
    several = len(found) > 1
    texts, values = [], dict[str, Scalar]()
    for contender, ours in found:
        where = f" on {contender.nodes}" if several or figure.nodes is None else ""
        count = "" if ours.reached == ours.seeds else f" {ours.reached}/{ours.seeds}"
        texts.append(f"{form(ours.median) if several else with_interval(ours, form)}{count}{where}")
        own = f"{contender.nodes}_" if several else ""
        values.update({f"{own}{name}": value for name, value in machine_value(ours).items()})
    return Entry(text=", ".join(texts), value=values)


def _ratio(group: Group, figure: Figure) -> Entry:
    found, theirs = _found(group, figure), figure.seconds if figure.value is None else figure.value
    if len(found) != 1 or not theirs or found[0][1].reached == 0:
        return NOTHING
    ratio = found[0][1].median / theirs
    return Entry(text=number(ratio), value=ratio if found[0][1].reached * 2 > found[0][1].seeds else None)


def _found(group: Group, figure: Figure) -> list[tuple[Contender, Estimate]]:
    """The contenders that `figure` is like, with their seconds to its level or their final values."""
    found = []
    for contender in group.contenders:
        if not figure.is_like(contender):
            continue
        curves = [dataclasses.replace(run.curve, metric=figure.metric) for run in contender.runs]
        if not all(figure.metric in curve.evaluations[-1].metrics for curve in curves):
            continue
        if figure.level is not None:
            there = [time_to_target(curve, figure.level) for curve in curves]
            values = [crossing.seconds if crossing else math.inf for crossing in there]
        else:
            finals = [curve.final() for curve in curves]
            values = [-math.inf if final is None else final for final in finals]
        found.append((contender, estimate(values)))
    return found
