"""Tables for terminals, markdown, CSV and JSON."""

import csv
import io
import json

import pytest
from fake_runs import header, write_plausible, write_run
from test_tables import ramp

from istbench.report.output.formats import print_report
from istbench.report.output.markdown import table_markdown
from istbench.report.output.terminal import print_table
from istbench.report.report import build_report

HOSTILE = "a|b<script>[red]x[/red]`*_\x1b[31m\n=1+1"


def printed(report, output_format):
    out, notes = io.StringIO(), io.StringIO()
    print_report(report, out, output_format=output_format, notes=notes)
    return out.getvalue(), notes.getvalue()


@pytest.fixture
def report(results):
    for seed in range(2):
        write_plausible(results, "ddp", seed=seed)
        write_plausible(results, "ist", seed=seed, best=0.75)
    return build_report(results)


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


def test_json_holds_numbers_and_null(report):
    text, notes = printed(report, "json")
    (table,) = json.loads(text)["tables"]
    row = table["rows"][1]
    assert row["method"] == "ist"
    assert row["nodes"] == 2
    assert row["train_s_to_0.8"]["median"] is None
    assert row["train_s_to_0.7"]["median"] > 0
    assert table["context"]["data"] == "synthetic"
    assert notes == ""


def test_csv_has_one_line_a_row_and_empty_fields_for_misses(report):
    text, _ = printed(report, "csv")
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["method"], second["method"]) == ("ddp", "ist")
    assert float(first["train_s_to_0.8_median"]) > 0
    assert second["train_s_to_0.8_median"] == ""
    assert second["train_s_to_0.8_reached"] == "0"
    assert first["data"] == "synthetic"


def test_csv_of_tables_with_other_columns_has_all_of_them(results):
    write_run(results, header(), ramp(9.0))
    write_run(results, header(workload="toy", targets=[0.5]), ramp(9.0))
    speech, toy = csv.DictReader(io.StringIO(printed(build_report(results), "csv")[0]))
    assert (speech["train_s_to_0.5_median"], toy["train_s_to_0.8_median"]) == ("", "")
    assert float(toy["train_s_to_0.5_median"]) == 5.0


def test_hostile_names_stay_text(results):
    write_run(results, header(method_label=HOSTILE, cell="hostile"), ramp(9.0))
    report = build_report(results)
    markdown, _ = printed(report, "markdown")
    row = next(line for line in markdown.splitlines() if "script" in line)
    assert "<" not in row
    assert row.count("|") - row.count("\\|") == len(report.tables[0].columns) + 1
    terminal, _ = printed(report, "table")
    assert "\x1b" not in terminal
    assert "[red]" in terminal
    (record,) = csv.DictReader(io.StringIO(printed(report, "csv")[0]))
    assert record["method"] == HOSTILE
    assert json.loads(printed(report, "json")[0])["tables"][0]["rows"][0]["method"] == HOSTILE


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
