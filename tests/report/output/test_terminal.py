"""Tables at a terminal."""

import io

import pytest
from fake_runs import averaging_trace, header, ramp, write_plausible, write_run

from istbench.cluster.profile import load_profile
from istbench.report.output.formats import print_report
from istbench.report.output.terminal import print_table, print_tables, wrapped
from istbench.report.phrases import Caution, Lead
from istbench.report.report import build_report
from istbench.report.tables.table import ColumnOf, plain, table_of


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


def printed_lines(table, **how):
    out = io.StringIO()
    print_table(table, out, width=400, **how)
    return [line.strip() for line in out.getvalue().splitlines() if line.strip()]


def test_a_brief_footer_has_data_budget_clock_and_seeds_and_the_number_of_the_other_lines(report):
    (table,) = report.tables
    lines = printed_lines(table, explain=False)[-5:]
    assert [line.partition(": ")[0] for line in lines[:4]] == ["Data", "Budget", "Clock", "Seeds"]
    assert "30 epochs" in lines[1]
    hidden = [line for line in table.footer if line not in lines]
    assert lines[4] == f"{len(hidden)} more lines: --explain."
    assert any(line.startswith("How to read") for line in hidden)
    assert printed_lines(table)[-len(table.footer) :] == list(table.footer)


def test_a_brief_footer_hides_no_warning(results):
    write_plausible(results, "ddp", nodes=16)
    write_plausible(results, "ist", nodes=16, versions={"istbench": "0.2.0", "torch": "2.11.0"})
    write_plausible(results, "local_sgd", nodes=16, status="failed")
    (table,) = build_report(results).tables
    shown = printed_lines(table, explain=False)
    for said in (
        "Seeds: one in each row",
        "nodes took turns on 8 cores",
        "Careful: these runs",
        "Not counted: 1 of 3",
    ):
        assert any(said in line for line in shown), said
    assert not any(line.startswith("Tuning") for line in shown)


def table_with(*footer):
    method = ColumnOf(key="method", title="method", entry=plain)
    return table_of([method], ["ddp"], title="a table", footer=footer)


def test_a_single_line_more_is_printed_as_it_is():
    lines = (Lead("Data"), Caution("Careful"), "more")
    assert printed_lines(table_with(*lines), explain=False)[-3:] == list(lines)
    assert printed_lines(table_with(Lead("Data"), "a", "b"), explain=False)[-2:] == [
        "Data",
        "2 more lines: --explain.",
    ]


def test_lines_below_several_tables_are_printed_once_after_the_last():
    out = io.StringIO()
    print_tables([table_with(Lead("Data"), Lead("own")), table_with(Lead("Data"), "guide"), table_with()], out)
    lines = [line.strip() for line in out.getvalue().splitlines() if line.strip()]
    assert lines.count("Data") == 1
    assert lines[-1] == "Data"
    assert lines.index("own") < lines.index("guide")


@pytest.fixture
def printed_report(results, monkeypatch):
    """What a terminal of so many columns shows of some runs on a machine and on a cluster."""
    for seed in range(2):
        for number, method in enumerate(("ddp", "ist", "local_sgd"), start=1):
            options = f"lr=0.1 local_steps={number}"
            trace = averaging_trace(2)
            write_run(results, header(method, seed=seed, options=options), ramp(20.0 / number + seed), trace=trace)
    report = build_report(results, cluster=load_profile("m5.2xlarge"))

    def shown(columns, **how):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = io.StringIO()
        print_report(report, out, notes=io.StringIO(), explain=False, **how)
        return out.getvalue().splitlines()

    return shown


@pytest.mark.parametrize("columns", [80, 120])
def test_the_answer_comes_first_then_one_table_the_fastest_row_first(printed_report, columns):
    lines = printed_report(columns)
    assert max(map(len, lines)) <= min(columns, 100)
    text = " ".join(" ".join(lines).split())
    assert text.startswith("local_sgd on 2 nodes is the first of ")
    assert "measured on laptop; 2 of 2 seeds reached it." in text
    assert ", replayed on m5.2xlarge." in text
    start = next(place for place, line in enumerate(lines) if line.startswith("──")) + 1
    assert [line.split()[0] for line in lines[start : start + 3]] == ["local_sgd", "ist", "ddp"]
    assert sum(line.startswith("──") for line in lines) == 1
    assert text.count("Data: ") == 1
    assert "3 more tables" in text
    assert text.endswith(": --all.")


@pytest.mark.parametrize("columns", [80, 120])
def test_options_that_all_rows_share_are_printed_once(printed_report, columns):
    text = "\n".join(printed_report(columns))
    assert text.count("lr=0.1") == 1
    assert "All rows: lr=0.1." in text


def test_all_tables_are_printed_below_the_first(printed_report):
    brief, lines = printed_report(80), printed_report(80, all_tables=True)
    assert max(map(len, lines)) <= 80
    assert "where the replayed time goes" not in "\n".join(brief)
    assert "where the replayed time goes" in "\n".join(lines)
    assert "--all" not in "\n".join(lines)
    place = brief.index("")
    assert lines[:place] == brief[:place]


def test_columns_that_a_narrow_terminal_leaves_out_are_named(printed_report):
    assert "MB sent per node" in "\n".join(printed_report(60)[-4:])


def test_lines_are_wrapped_and_indented_but_for_commands(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    command = "istbench run --method ist --workload speech --nodes 4"
    shown = wrapped(f"Why:\n  ist: three seconds of computing, one of waiting\n{command}\nby \x1b[31m")
    assert shown.splitlines() == [
        "Why:",
        "  ist: three seconds of",
        "    computing, one of waiting",
        command,
        "by ?[31m",
    ]
