"""Published figures beside those of a group."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from istbench.report.groups import Contender, Group
from istbench.report.phrases import Caution, Lead, data_line, guide_line
from istbench.report.published import Figure
from istbench.report.tables.group_columns import group_context
from istbench.report.tables.numbers import NumberForm, finite, machine_value, metric_value, number, with_interval
from istbench.report.tables.stalls import group_stall_lines
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Scalar, Table, plain, table_of
from istbench.results.curves import time_to_target
from istbench.results.metrics import Metric, level_text, metric_named
from istbench.results.stats import Estimate, estimate


@dataclass(frozen=True)
class _FigureRow:
    """A published figure, and the contenders like it with their seconds to its level, or final values."""

    figure: Figure
    ours: tuple[tuple[Contender, Estimate], ...]


def beside_published(group: Group, baseline: str, figures: Sequence[Figure]) -> Table | None:
    """A row for each of `figures` that a row of the group matches, or that belongs to another method or system.

    None without such figures.
    """
    if not group.contenders:
        return None
    of_workload = [_FigureRow(figure, _ours(group, figure)) for figure in figures if figure.is_of(group)]
    methods = {contender.method for contender in group.contenders}
    own = [row for row in of_workload if row.figure.method not in methods or row.ours]
    if not own:
        return None
    left_out = len(of_workload) - len(own)
    notes = dict.fromkeys(row.figure.note for row in own if row.figure.note)
    return table_of(
        _COLUMNS,
        own,
        title=f"{group.workload_label}, {group.source.seen}: beside published figures, {group.clock_words} on "
        f"{group.machine}",
        footer=(
            data_line(group.source),
            Lead(f"Clock of our seconds: {group.clock}. Other options, data and machines may differ."),
            *(
                [Caution(f"Left out: {left_out} figures for other options or numbers of nodes.")]
                if left_out
                else []
            ),
            *group_stall_lines(group),
            *(f"Published: {note}." for note in notes),
            guide_line("beside-published-figures"),
        ),
        keys=4,
        context=group_context(group, baseline),
    )


def _ours(group: Group, figure: Figure) -> tuple[tuple[Contender, Estimate], ...]:
    metric = _metric(group, figure)
    own_width = [row for row in group.contenders if not row.narrowed]
    alike = [(row, _values(row, figure, metric)) for row in own_width if figure.is_like(row)]
    return tuple((contender, estimate(values)) for contender, values in alike if values)


def _metric(group: Group, figure: Figure) -> Metric:
    """The metric of the figure, with the direction that the group or a run recorded, else that of its name."""
    known = [group.metric, *(run.header.own_metric for run in group.runs)]
    return next((metric for metric in known if metric.name == figure.metric), metric_named(figure.metric))


def _values(contender: Contender, figure: Figure, metric: Metric) -> list[float]:
    """For each run the seconds to the level of the figure, or the final value; none without that `metric`."""
    if not all(metric.name in run.curve.evaluations[-1].metrics for run in contender.runs):
        return []
    if figure.level is None:
        return contender.finals(metric)
    there = [time_to_target(run.curve.on_metric(metric), figure.level) for run in contender.runs]
    return [crossing.seconds if crossing else math.inf for crossing in there]


def _what(row: _FigureRow) -> Entry:
    figure = row.figure
    if figure.level is None:
        return plain(f"final {figure.metric}")
    return plain(f"seconds to {figure.metric} {level_text(figure.level)}")


def _published(row: _FigureRow) -> Entry:
    figure = row.figure
    if figure.seconds is not None:
        return Entry(text=number(figure.seconds), value=figure.seconds)
    return Entry(text="failed", value=None) if figure.value is None else plain(f"{figure.value:g}")


def _found(row: _FigureRow) -> Entry:
    if not row.ours:
        return NOTHING
    form: NumberForm = number if row.figure.seconds is not None else metric_value
    several = len(row.ours) > 1
    alike = len({contender.nodes for contender, _ in row.ours}) < len(row.ours)
    texts, values = [], dict[str, Scalar]()
    for contender, ours in row.ours:
        by = f" by {contender.label}" if alike else ""
        where = f"{by} on {contender.nodes}" if several or row.figure.nodes is None else ""
        count = "" if ours.reached == ours.seeds else f" {ours.reached}/{ours.seeds}"
        texts.append(f"{form(ours.median) if several else with_interval(ours, form)}{count}{where}")
        own = f"{contender.label} {contender.nodes}_" if alike else f"{contender.nodes}_" if several else ""
        values.update({f"{own}{name}": value for name, value in machine_value(ours).items()})
    return Entry(text=", ".join(texts), value=values)


def _ratio(row: _FigureRow) -> Entry:
    theirs = row.figure.seconds if row.figure.value is None else row.figure.value
    if len(row.ours) != 1 or not theirs:
        return NOTHING
    ((_, ours),) = row.ours
    if ours.reached == 0:
        return NOTHING
    ratio = ours.median / theirs
    return Entry(text=number(ratio), value=finite(ratio) if ours.reached * 2 > ours.seeds else None)


_COLUMNS: tuple[ColumnOf[_FigureRow], ...] = (
    ColumnOf(key="paper", title="paper", align="left", entry=lambda row: row.figure.paper),
    ColumnOf(key="method", title="method", align="left", entry=lambda row: row.figure.label),
    ColumnOf(key="nodes", title="nodes", entry=lambda row: row.figure.nodes),
    ColumnOf(key="what", title="figure", align="left", entry=_what),
    ColumnOf(key="published", title="published", entry=_published),
    ColumnOf(key="ours", title="ours", entry=_found),
    ColumnOf(key="ours_over_published", title="ours / published", entry=_ratio, optional=True),
)
