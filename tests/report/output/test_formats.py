"""A report in every format."""

import csv
import io
import json

from fake_runs import header, ramp, write_plausible, write_run
from read_tables import printed

from istbench.report.output.formats import table_markdown
from istbench.report.report import build_report

HOSTILE = "a|b<script>[red]x[/red]`*_\x1b[31m\n=1+1"


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
