"""The table of a map of methods: the first one in each cell, and its lead."""

from collections.abc import Iterable
from functools import partial

from istbench.report.map import NEVER_RUN, Tile, WinnerMap
from istbench.report.phrases import (
    ROUGH_LINE,
    Caution,
    Lead,
    close_targets_line,
    guide_line,
    latency_line,
    metric_line,
    network_line,
    replay_lines,
)
from istbench.report.tables.comparison_footer import doubted_lines, seeds_line
from istbench.report.tables.group_columns import shared_line
from istbench.report.tables.table import ColumnOf, Entry, Table, table_of

_Row = tuple[str, tuple[Tile, ...]]


def winners_table(found: WinnerMap) -> Table:
    """A row for each value of the other axis, and a column for each bandwidth."""
    columns: list[ColumnOf[_Row]] = [
        ColumnOf(key=found.by, title=found.row_label, entry=lambda row: row[0]),
        *(
            ColumnOf(key=f"at {name}", title=name, entry=partial(_entry, place), align="left")
            for place, name in enumerate(found.columns)
        ),
    ]
    return table_of(
        columns, list(zip(found.rows, found.tiles, strict=True)), title=found.title, footer=tuple(_footer(found))
    )


def _entry(place: int, row: _Row) -> Entry:
    tile = row[1][place]
    return Entry(
        text=tile.text, value={"winner": tile.winner, "seconds": tile.seconds, "over_next": tile.over_next}
    )


def _footer(found: WinnerMap) -> Iterable[str]:
    group, profile = found.group, found.group.profile
    assert profile is not None
    tiles = [tile for row in found.tiles for tile in row]
    if found.sentence:
        yield Lead(found.sentence)
    yield Lead(found.words)
    yield Lead(f"Runs: {found.subtitle}.")
    yield from (line for line in seeds_line(group) if isinstance(line, Caution))
    if group.unequal_trials:
        yield Caution(f"Tuned unequally. Trials: {group.unequal_trials}. A lead may be the tuning.")
    if any(tile.rough for tile in tiles):
        yield ROUGH_LINE
    if found.extrapolated:
        yield Caution(f"{NEVER_RUN}: extrapolated, a method of the cell was never run on so many nodes.")
    yield from replay_lines(group.times, profile, group.device)
    if found.by == "latency":
        yield from latency_line(max(float(tile.row) for tile in tiles))
    yield from doubted_lines(group)
    yield from close_targets_line(group.close_targets, group.evaluation_error)
    yield from metric_line(group.metric, own=group.has_own_metric)
    yield from shared_line(group)
    yield from network_line(profile)
    yield guide_line("maps")
