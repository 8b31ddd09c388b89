"""Tables made of columns."""

from istbench.report.tables.numbers import NOTHING, plain
from istbench.report.tables.table import Column, ColumnOf, fill


def test_a_column_says_its_key_and_title_and_what_stands_in_it():
    length = ColumnOf(key="characters", title="how long", entry=lambda word: plain(len(word)))
    name = ColumnOf(key="word", title="", align="left", entry=plain)
    columns, rows = fill([name, length], ["one", "three"])
    assert columns == (
        Column(key="word", title="", align="left"),
        Column(key="characters", title="how long", align="right"),
    )
    assert [[entry.value for entry in row] for row in rows] == [["one", 3], ["three", 5]]


def test_an_optional_column_is_there_where_one_row_has_a_value_in_it():
    even = ColumnOf(
        key="even", title="even", optional=True, entry=lambda row: plain(row) if row % 2 == 0 else NOTHING
    )
    assert fill([even], [1, 3]) == ((), ((), ()))
    assert fill([even], []) == ((), ())
    (column,), rows = fill([even], [1, 2])
    assert (column.key, [row[0].value for row in rows]) == ("even", [None, 2])
