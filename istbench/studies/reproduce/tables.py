"""Tables of a reproduction: our figures beside the published ones, and the list of what there is to run."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from istbench.base.options.data_source import DataSource
from istbench.report.phrases import ROUGH, Caution, Lead
from istbench.report.tables.numbers import machine_value, number, rounded
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Table, column, table_of
from istbench.results.load import Run
from istbench.studies.reproduce.cells import Overrides
from istbench.studies.reproduce.hours import Forecast, forecast
from istbench.studies.reproduce.paper import Compared, Comparison, Difference, Experiment, Extent, Scale, Subject

_KEYS = 5  # a paper may give two figures of one row, and they differ in the published value


def compared_table(experiment: Experiment, scale: Scale, subjects: Sequence[Subject], found: Comparison) -> Table:
    """The figures of `experiment` beside the published ones. subjects: those that trained."""
    own = _own_differences(subjects, experiment.at[scale])
    differences = (*own, *found.differences)
    aspects = tuple(dict.fromkeys(difference.aspect for difference in differences if difference.aspect != "nodes"))
    rows = [dataclasses.replace(row, aspects=(*aspects, *row.aspects)) for row in found.rows]
    return table_of(
        _COLUMNS,
        rows,
        title=f"{experiment.title}, at {scale} scale: published and ours",
        footer=tuple(_footer(subjects, found, differences)),
        keys=_KEYS,
        empty="Nothing of this scale stands beside a published figure.",
        context={"table": experiment.name, "scale": scale},
    )


def further_table(title: str, found: Sequence[Compared]) -> Table:
    """A table of `found` beside the main one, whose footer names what differs."""
    return table_of(
        _COLUMNS,
        found,
        title=title,
        footer=tuple(_rough_line(found)),
        keys=_KEYS,
    )


def sources_of(subjects: Iterable[Subject]) -> list[DataSource]:
    """The data of the runs, each once."""
    found: dict[str, DataSource] = {}
    for one in subjects:
        for run in one.runs:
            found.setdefault(run.header.data_source.seen, run.header.data_source)
    return list(found.values())


def _own_differences(subjects: Sequence[Subject], extent: Extent) -> Iterable[Difference]:
    """The data that our runs saw, unless it is a complete known data set, and the differences of `extent`.

    Those of made-up data are left out if all runs saw other data.
    """
    sources = sources_of(subjects)
    made_up = not sources
    for source in sources:
        made_up = made_up or source.kind == "synthetic"
        if source.whole is None or source.train + source.test < source.whole:
            yield Difference(aspect="data", text=f"our runs saw {source.seen}.")
    yield from (difference for difference in extent.differs if made_up or not difference.made_up)


def _footer(subjects: Sequence[Subject], found: Comparison, differences: Sequence[Difference]) -> Iterable[str]:
    sources = sources_of(subjects)
    if sources:
        made_up = any(source.kind == "synthetic" for source in sources)
        warning = " Accuracies of made-up data say nothing about the real ones." if made_up else ""
        yield Lead(f"Data of our runs: {'; '.join(source.seen for source in sources)}.{warning}")
    missing = sum(one.seeds - len(one.runs) for one in subjects)
    if missing:
        yield Caution(
            f"Partial: {missing} of {sum(one.seeds for one in subjects)} cells are not trained, or unreadable. The "
            "same command trains the former, and names the latter."
        )
    yield from (Caution(line) for line in found.cautions)
    yield from _rough_line(found.rows)
    told: set[str] = set()
    for difference in differences:
        if difference.text not in told:
            told.add(difference.text)
            yield Lead(f"Differs, {difference.aspect}: {difference.text}")
    yield from found.notes
    if any(row.planned for row in found.rows):
        yield (
            "k of n: seeds that reached the level, of those that the experiment trains. The figure is the median "
            "over trained seeds, a miss counting as infinity; the range goes over them."
        )


def _rough_line(rows: Iterable[Compared]) -> Iterable[str]:
    if any(_is_rough(row) for row in rows):
        yield Caution(
            f"{ROUGH}: a seed reached it before its first evaluation, so its time is interpolated from step 0."
        )


def _is_rough(row: Compared) -> bool:
    return row.rough and row.ours is not None and math.isfinite(row.ours.median)


def _reached(compared: Compared) -> Entry:
    if not compared.planned:
        return NOTHING
    late = compared.planned - compared.trained
    more = f", {late} not trained" if late else ""
    return Entry(
        text=f"{compared.reached} of {compared.planned}{more}",
        value={"reached": compared.reached, "trained": compared.trained, "planned": compared.planned},
    )


def _ours(compared: Compared) -> Entry:
    if compared.ours is None:
        return Entry(text=compared.ours_text, value=compared.ours_text)
    value = machine_value(compared.ours)
    if not _is_rough(compared):
        return Entry(text=compared.ours_text, value=value)
    return Entry(text=ROUGH + compared.ours_text, value={**value, "before_first_evaluation": True})


_COLUMNS: tuple[ColumnOf[Compared], ...] = (
    column("network", "network", lambda row: row.network, align="left"),
    column("method", "method", lambda row: row.method, align="left"),
    column("nodes", "nodes", lambda row: row.nodes),
    column("figure", "figure", lambda row: row.what, align="left"),
    column(
        "published",
        "published",
        lambda row: Entry(
            text=row.published_text,
            value=row.published_text if row.published is None else row.published,
        ),
    ),
    column("ours", "ours", _ours),
    column("ours_over_published", "ours / published", lambda row: rounded(row.ratio)),
    column("seeds", "k of n seeds", _reached, optional=True),
    column("range", "range", lambda row: row.spread_text, optional=True),
    column(
        "differs",
        "differs",
        lambda row: ", ".join(dict.fromkeys(row.aspects)) if row.aspects else None,
        align="left",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A table that can be run.

    Attributes:
        cells, left: its cells, and those that are not done. shared: those of `left` that an earlier table has too.
        hours: of the others of `left`, on two cores; None if unknown. needs: the data that the user must give.
    """

    experiment: Experiment
    cells: int
    left: int
    shared: int
    hours: float | None
    needs: str


def listed(
    experiments: Sequence[Experiment],
    scale: Scale,
    overrides: Overrides,
    runs: Sequence[Run],
    data: Collection[str],
) -> list[Listed]:
    """The cells that `experiments` would run. runs: of the results directory. data: workloads with a directory."""
    seen, found = list[Forecast](), list[Listed]()
    for experiment in experiments:
        extent = experiment.at[scale]
        own = [one for cells in extent.cells for one in forecast(cells, overrides, runs)]
        left = [one for one in own if not one.done]
        hours = [one.hours for one in left if one not in seen]
        found.append(
            Listed(
                experiment=experiment,
                cells=len(own),
                left=len(left),
                shared=len(left) - len(hours),
                hours=None if None in hours else math.fsum(one or 0.0 for one in hours),
                needs=extent.needed(data),
            )
        )
        seen += left
    return found


def list_table(title: str, rows: Sequence[Listed]) -> Table:
    """The list of tables for readers."""
    able = [row for row in rows if not row.needs]
    known = [row.hours for row in able if row.hours is not None]
    total = f"{sum(row.left - row.shared for row in able)} cells to run"
    hours = f", about {number(sum(known))} hours on two cores" if len(known) == len(able) else ""
    return table_of(
        _LIST_COLUMNS,
        rows,
        title=title,
        footer=(
            Lead(f"{total}{hours}, without the tables that need data."),
            "Hours are estimates for two idle cores; finished cells of the results directory make them better.",
            "Tables share cells: a shared cell is trained once, and its hours stand in the first table.",
        ),
    )


def _hours(row: Listed) -> Entry:
    if row.left and row.shared == row.left:
        return Entry(text="shared", value=0.0)
    return Entry(text="unknown" if row.hours is None else number(row.hours), value=row.hours)


_LIST_COLUMNS: tuple[ColumnOf[Listed], ...] = (
    column("table", "table", lambda row: row.experiment.name, align="left"),
    column("title", "contents", lambda row: row.experiment.title, align="left"),
    column("cells", "cells", lambda row: row.cells),
    column("done", "done", lambda row: row.cells - row.left),
    column("hours", "hours", _hours),
    column("needs", "needs", lambda row: row.needs, align="left"),
)
