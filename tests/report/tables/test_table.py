"""Tables made of columns."""

from istbench.report.tables.table import NOTHING, Column, ColumnOf, plain, table_of


def test_a_column_says_its_key_and_title_and_what_stands_in_it():
    length = ColumnOf(key="characters", title="how long", entry=lambda word: plain(len(word)))
    name = ColumnOf(key="word", title="", align="left", entry=plain)
    table = table_of([name, length], ["one", "three"], title="words")
    assert table.columns == (
        Column(key="word", title="", align="left"),
        Column(key="characters", title="how long", align="right"),
    )
    assert [[entry.value for entry in row] for row in table.rows] == [["one", 3], ["three", 5]]


def test_an_optional_column_is_there_where_one_row_has_a_value_in_it():
    even = ColumnOf(
        key="even", title="even", optional=True, entry=lambda row: plain(row) if row % 2 == 0 else NOTHING
    )
    for odd in ([1, 3], []):
        table = table_of([even], odd, title="even")
        assert (table.columns, table.rows) == ((), ((),) * len(odd))
    table = table_of([even], [1, 2], title="even")
    assert ([column.key for column in table.columns], [row[0].value for row in table.rows]) == (["even"], [None, 2])


def test_a_column_may_give_the_value_alone_and_nothing_for_none_and_an_empty_text():
    own = ColumnOf(key="own", title="own", entry=lambda row: row)
    table = table_of([own], [3, "a", "", None, plain(4)], title="values")
    assert [row[0] for row in table.rows] == [plain(3), plain("a"), NOTHING, NOTHING, plain(4)]
