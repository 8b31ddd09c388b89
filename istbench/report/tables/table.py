"""Tables as plain data, and the columns that make them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

Scalar = str | int | float | bool | None
Align = Literal["left", "right"]
Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column. key: its name in CSV and JSON, with the unit. title: its heading for readers.

    rank: a narrow terminal leaves out the columns of the highest rank first, and never those of rank 0.
    """

    key: str
    title: str
    align: Align = "right"
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cell of a table.

    text: for readers. value: for programs, one value or several by name; None if missing.
    """

    text: str
    value: Scalar | Mapping[str, Scalar]


EntryOrValue = Entry | str | int | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    rows: an entry for each column. footer: lines below the table. keys: number of leading columns that name a row.
    context: fields for programs that hold for every row. Rows of two tables with the same context and name describe
    the same thing. empty: the text of a table without rows.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    footer: tuple[str, ...] = ()
    keys: int = 1
    empty: str = "No finished runs."
    context: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ColumnOf(Column, Generic[Row]):
    """A column with the function that makes its entry for a row, or its value, which is then its text too.

    An empty text and None make no entry.
    optional: the column is left out if no row has a value in it.
    """

    entry: Callable[[Row], "EntryOrValue"]
    optional: bool = False


NOTHING = Entry(text="–", value=None)


def column(key: str, title: str, entry: Callable[[Row], "EntryOrValue"], **others: Any) -> ColumnOf[Row]:
    """The column of this `key` and `title`; `others` are the other fields of `ColumnOf`."""
    return ColumnOf(key=key, title=title, entry=entry, **others)


def plain(value: str | int) -> Entry:
    return Entry(text=str(value), value=value)


def items_table(rows: Iterable[tuple[str, str, Scalar]], **fields: Any) -> Table:
    """The table with an item in each row: its name, its text and its value. `fields` are as in `table_of`."""
    return Table(
        columns=(Column(key="item", title="", align="left"), Column(key="value", title="", align="left")),
        rows=tuple((plain(name), Entry(text=text, value=value)) for name, text, value in rows),
        keys=0,
        **fields,
    )


def grid_table(
    first: Column, names: Iterable[str], rows: Iterable[tuple[str, Sequence[Entry]]], **fields: Any
) -> Table:
    """The table of a map: column `first` names the rows, and each has an entry in a column for each of `names`."""
    columns = [Column(key=f"at {name}", title=name, align="left") for name in names]
    return Table(columns=(first, *columns), rows=tuple((plain(name), *entries) for name, entries in rows), **fields)


def table_of(columns: Iterable[ColumnOf[Row]], rows: Sequence[Row], **fields: Any) -> Table:
    """The table with a row for each of `rows`; the other fields of `Table` are `fields`."""
    filled = [(column, [_entry_of(column.entry(row)) for row in rows]) for column in columns]
    shown = [
        (Column(key=column.key, title=column.title, align=column.align, rank=column.rank), entries)
        for column, entries in filled
        if not column.optional or any(entry.value is not None for entry in entries)
    ]
    entries = tuple(tuple(own[place] for _, own in shown) for place in range(len(rows)))
    return Table(columns=tuple(column for column, _ in shown), rows=entries, **fields)


def _entry_of(made: "EntryOrValue") -> Entry:
    if isinstance(made, Entry):
        return made
    return NOTHING if made is None or made == "" else plain(made)
