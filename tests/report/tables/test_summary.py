"""The summary of one run."""

import dataclasses

import msgspec
import pytest
from fake_clusters import BARE
from fake_runs import averaging_trace, header, ramp, write_run
from read_tables import footer

from istbench.report.report import build_report_on_clusters
from istbench.report.tables.summary import run_sentence, run_summary
from istbench.results.load import load_run
from istbench.results.on_cluster import runs_on_clusters


def test_the_summary_of_a_run(results):
    run = load_run(write_run(results, header("ist"), ramp(9.0, 0.75)))
    table = run_summary(run)
    items = {row[0].text: row[1] for row in table.rows}
    assert items["train seconds to accuracy 0.7"].text == "8.40 (step 93)"
    assert items["train seconds to accuracy 0.8"].text == "not reached"
    assert items["train seconds to accuracy 0.8"].value is None
    assert items["final accuracy"].text == "0.750"
    assert "SYNTHETIC" in footer(table)
    assert run_sentence(run) == (
        "ist on 2 nodes reached accuracy 0.7 in 8.40 s measured on laptop. One seed, so no spread is known."
    )


def test_a_run_that_reached_no_target_says_so_first(results):
    run = load_run(write_run(results, header("ist"), ramp(9.0, 0.5)))
    assert run_sentence(run) == (
        "ist on 2 nodes trained for 30 epochs and reached no target: the best accuracy is 0.500."
    )


def test_the_summary_of_a_run_that_failed_at_once(results):
    run = load_run(write_run(results, header(status="failed", error="out of memory"), []))
    assert [row[1].text for row in run_summary(run).rows] == ["failed", "out of memory"]


def test_the_summary_of_a_run_on_a_cluster(results):
    run = load_run(write_run(results, header(), ramp(9.0, 0.75), trace=averaging_trace(2)))
    ((replayed,),), _ = runs_on_clusters([run], [BARE])
    items = {row[0].text: row[1] for row in run_summary(run, replayed).rows}
    assert items["m5.2xlarge seconds"].value == pytest.approx(101)
    assert items["m5.2xlarge seconds to accuracy 0.7"].value == pytest.approx(101 * 0.7 / 0.75)
    assert items["m5.2xlarge seconds to accuracy 0.8"].text == "not reached"
    assert items["m5.2xlarge dollars"].value == pytest.approx(101 * 2 * 0.384 / 3600)
    assert items["train seconds"].value == 9.0
    assert " in 8.40 s measured on laptop, 94.3 s replayed on m5.2xlarge. One seed" in run_sentence(run, replayed)


def test_what_speaks_against_replayed_seconds_is_said_beside_them(results):
    trace = averaging_trace(2)
    disturbed = dataclasses.replace(trace, meta=msgspec.structs.replace(trace.meta, cores=2, others_cores=1.9))
    run = load_run(write_run(results, header(), ramp(9.0, 0.75), trace=disturbed))
    ((replayed,),), _ = runs_on_clusters([run], [BARE])
    assert "others used 1.9 of 2 cores" in footer(run_summary(run, replayed))
    (table, *_) = build_report_on_clusters(results, {"bare": [BARE]}).tables
    assert "1 of 1 runs may be far off, for example ddp on 2 nodes seed 0: others used" in footer(table)
