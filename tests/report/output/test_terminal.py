"""Tables at a terminal."""

import io

from istbench.report.output.terminal import print_table


def test_a_narrow_terminal_gets_blocks_and_every_value_whole(report):
    (table,) = report.tables
    out = io.StringIO()
    print_table(table, out, width=80)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.split()[:2] == ["ist", "2"] for line in lines) > 1
    for row in table.rows:
        for cell in row:
            assert cell.text in out.getvalue()


def test_a_wide_terminal_gets_one_block(report):
    out = io.StringIO()
    print_table(report.tables[0], out, width=200)
    assert sum(line.split()[:2] == ["ist", "2"] for line in out.getvalue().splitlines()) == 1
