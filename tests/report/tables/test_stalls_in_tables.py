"""Stalls of runs, below every table that shows train seconds."""

import csv
import io
import json

import pytest
from fake_clusters import BARE
from fake_runs import averaging_trace, header, ramp, resume, write_run
from read_tables import column, footer, printed, table_of

from istbench.report.page import build_page
from istbench.report.phrases import Caution
from istbench.report.report import build_report, build_report_on_clusters
from istbench.report.tables.summary import run_summary
from istbench.results.events import Stall
from istbench.results.load import load_run

OF_A_WORKER = Stall(step=40, seconds=3.0, operation="computing training step", rank=1)
OF_A_LINK = Stall(step=60, seconds=0.5, operation="gradient bucket 0")
WHERE = "worker 1 at step 40 (computing training step)"
WORDS = f"3.00 of 4.10 train seconds passed in a stall of {WHERE}; 1.10 s without it"


def stalled(seconds, *events):
    """Events of a run of `seconds`, with others before its last evaluation."""
    *before, last = ramp(seconds)
    return [*before, *events, last]


def test_the_sentence_names_the_seconds_without_the_stall(results):
    run = load_run(write_run(results, header(), stalled(4.1, OF_A_WORKER)))
    assert f"Careful: {WORDS}." in run_summary(run).footer
    assert f"Careful: {WORDS}." in footer(table_of(results))


def test_several_stalls_are_added_up_and_the_longest_has_a_name(results):
    rest = Stall(step=90, seconds=2.0, count=7)
    run = load_run(write_run(results, header(), stalled(10.0, OF_A_LINK, OF_A_WORKER, rest)))
    words = f"5.50 of 10.0 train seconds passed in 9 stalls, the longest of {WHERE}; 4.50 s without them"
    assert words in footer(run_summary(run))


def test_where_all_workers_waited_the_operation_is_named(results):
    run = load_run(write_run(results, header(), stalled(10.0, OF_A_LINK)))
    assert "in a stall of all workers at step 60 (gradient bucket 0); 9.50 s without it" in footer(run_summary(run))


def test_a_part_of_a_run_that_was_lost_has_no_stall(results):
    run = load_run(write_run(results, header(), stalled(4.1, OF_A_WORKER, resume(20))))
    assert run.stalls == ()
    assert "stall" not in footer(run_summary(run))


def stalled_results(results):
    """Two runs of ddp, one with a stall, and one of ist without."""
    write_run(results, header("ddp", seed=0), stalled(4.1, OF_A_WORKER), computing=(1.0, 4.0))
    write_run(results, header("ddp", seed=1), ramp(1.2), computing=(1.0, 1.0))
    write_run(results, header("ist"), ramp(1.2), computing=(1.0, 1.0), trace=averaging_trace(2))


def test_every_table_of_train_seconds_has_the_warning_in_every_format(results):
    stalled_results(results)
    report = build_report(results)
    line = f"Careful: stalls in 1 of 3 runs. ddp on 2 nodes seed 0: {WORDS}."
    assert len(report.tables) == 2
    for table in report.tables:
        (said,) = [own for own in table.footer if own == line]
        assert isinstance(said, Caution)
    text, _ = printed(report, "json")
    assert [line in table["notes"] for table in json.loads(text)["tables"]] == [True, True]
    assert printed(report, "markdown")[0].count("in a stall of worker 1 at step 40") == 2
    rows = list(csv.DictReader(io.StringIO(printed(report, "csv")[0])))
    assert [row["stalled_s"] for row in rows] == ["3.0", ""]


def test_the_rows_tell_which_of_them_has_stalls(results):
    stalled_results(results)
    shown = column(table_of(results), "stalled_s")
    assert (shown["ddp", 2].text, shown["ddp", 2].value) == ("up to 3.00", pytest.approx(3.0))
    assert shown["ist", 2].value is None


def test_without_stalls_nothing_is_said(results):
    write_run(results, header(), ramp(4.1))
    table = table_of(results)
    assert "stall" not in footer(table)
    assert "stalled_s" not in [column.key for column in table.columns]


def test_replayed_seconds_have_no_stalls(results):
    write_run(results, header(), stalled(4.1, OF_A_WORKER), trace=averaging_trace(2))
    for table in build_report_on_clusters(results, {"bare": [BARE]}).tables:
        assert "stall" not in footer(table)


def test_the_page_has_it_below_its_tables_and_with_the_cell(results):
    stalled_results(results)
    page = build_page(build_report(results), results / "page.html")
    (study,) = page.studies
    for clock in study.clocks:
        assert WORDS in "\n".join(clock.notes)
    facts = [dict(cell.facts) for cell in study.cells]
    assert [one.get("stalls") for one in facts] == [WORDS, None, None]
