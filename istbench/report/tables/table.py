"""A table as plain data, and the columns that it is made of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

Scalar = str | int | float | bool | None
Align = Literal["left", "right"]
Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column. key: its name in CSV and JSON, unit included; title: what a reader sees."""

    key: str
    title: str
    align: Align = "right"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What stands in a column of a row.

    text: for readers. value: for programs, one value or several by name, None for what there is not.
    """

    text: str
    value: Scalar | Mapping[str, Scalar]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of so many columns.

    rows: one entry a column. footer: one line a remark. keys: leading columns that name the row.

    context: what holds for every row, for programs. Rows of two tables with the same context and the same name
    are about the same thing. empty: what to say where there are no rows.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    footer: tuple[str, ...] = ()
    keys: int = 1
    empty: str = "No finished runs."
    context: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ColumnOf(Generic[Row]):
    """A column, with how its entry is made of what a row is about.

    optional: it is left out where no row has a value in it.
    """

    key: str
    title: str
    entry: Callable[[Row], Entry]
    align: Align = "right"
    optional: bool = False


def fill(
    columns: Iterable[ColumnOf[Row]], rows: Sequence[Row]
) -> tuple[tuple[Column, ...], tuple[tuple[Entry, ...], ...]]:
    """The columns and the rows of a table with a row about each of `rows`."""
    filled = [(column, [column.entry(row) for row in rows]) for column in columns]
    shown = [
        (Column(key=column.key, title=column.title, align=column.align), entries)
        for column, entries in filled
        if not column.optional or any(entry.value is not None for entry in entries)
    ]
    kept = tuple(column for column, _ in shown)
    return kept, tuple(tuple(entries[place] for _, entries in shown) for place in range(len(rows)))
