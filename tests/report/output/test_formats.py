"""A report in every format."""

import csv
import io
import json

import pytest
from fake_runs import header, ramp, write_plausible, write_run
from read_tables import printed

from istbench.base.errors import printable
from istbench.report.output.formats import table_markdown, tables_csv
from istbench.report.report import build_report
from istbench.report.tables.table import Column, Entry, Table

HOSTILE = "a|b<script>[red]x[/red]`*_\x1b[31m\n=1+1"


def test_hostile_names_stay_text(results):
    write_run(results, header(method_label=HOSTILE, cell="hostile"), ramp(9.0))
    report = build_report(results)
    markdown, _ = printed(report, "markdown")
    assert "<" not in markdown
    row = next(line for line in markdown.splitlines() if line.startswith("|") and "script" in line)
    assert row.count("|") - row.count("\\|") == len(report.tables[0].columns) + 1
    terminal, _ = printed(report, "table")
    assert "\x1b" not in terminal
    assert "[red]" in terminal
    (record,) = csv.DictReader(io.StringIO(printed(report, "csv")[0]))
    assert record["method"] == printable(HOSTILE)
    assert json.loads(printed(report, "json")[0])["tables"][0]["rows"][0]["method"] == HOSTILE


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1-1", "'+1-1"),
        ("-2+3", "'-2+3"),
        ("@SUM(1)", "'@SUM(1)"),
        (" =1", "' =1"),
        ("\t=1", "?=1"),
        ("\r=1", "?=1"),
        ("\x1b[2J", "?[2J"),
        ("\uff1d1", "'\uff1d1"),
        ("ist;=1", "ist;'=1"),
        ("lr=0.1 a-b", "lr=0.1 a-b"),
        ("-1.3", "-1.3"),
        ("+1e-3", "+1e-3"),
        (-1.3, "-1.3"),
        (-7, "-7"),
    ],
)
def test_a_spreadsheet_computes_no_cell_of_a_csv_and_numbers_stay_numbers(text, cell):
    column, entry = Column(key=str(text), title="t"), Entry(text="t", value=text)
    text = tables_csv([Table(title="t", columns=(column,), rows=((entry,),), context={"=context": text})])
    names, values = csv.reader(io.StringIO(text))
    assert names == ["'=context", cell]
    assert values == [cell, cell]


def test_rows_of_two_tables_about_the_same_share_a_line_and_those_of_one_table_never_do():
    columns = [
        (Column(key="method", title="method"), Column(key=key, title=key)) for key in ("seconds", "megabytes")
    ]
    tables = [
        Table(
            title="t",
            columns=of,
            rows=(
                (Entry(text="ddp", value="ddp"), Entry(text="x", value=2 * n)),
                (Entry(text="ddp", value="ddp"), Entry(text="x", value=n)),
            ),
            keys=1,
        )
        for n, of in enumerate(columns, 1)
    ]
    assert [*csv.reader(io.StringIO(tables_csv(tables)))] == [
        ["method", "seconds", "megabytes"],
        ["ddp", "2", "4"],
        ["ddp", "1", "2"],
    ]


def test_a_table_without_rows_says_so(results):
    write_run(results, header(status="failed", error="died"), [])
    report = build_report(results)
    assert "No finished runs." in printed(report, "table")[0]
    assert "No finished runs." in table_markdown(report.tables[0])
    assert "Not counted: 1 of 1 runs" in printed(report, "table")[0]


def test_problems_go_to_the_notes(results):
    write_plausible(results, "ddp")
    write_plausible(results, "ist").run_json.write_text("{")
    report = build_report(results)
    for output_format in ("table", "markdown", "csv"):
        out, notes = printed(report, output_format)
        assert "not JSON" in notes
        assert "not JSON" not in out
    assert "not JSON" in json.loads(printed(report, "json")[0])["problems"][0]
