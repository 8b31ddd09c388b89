"""Runs with faults on the report: each beside the same run without."""

import msgspec
import pytest
from fake_runs import header, write_run
from fault_events import BEGAN, FAULT_FREE, loss, ready

from istbench.base.decode import decode_own
from istbench.report.faulty_runs import FaultSchedule, fault_results
from istbench.report.output.html.write import page_html
from istbench.report.page import build_page
from istbench.report.report import build_report
from istbench.results.fault_record import FaultRecord, Hit
from istbench.results.header import Header
from istbench.results.load import load_all_runs


@pytest.mark.parametrize(
    ("text", "short", "kinds", "rate", "every_s"),
    [
        ("poisson:2 of kill, stop:2s, seed 0", "2", ("kill", "stop:2s"), 2.0, None),
        ("poisson:20s of kill, kill, seed 7", "20s", ("kill",), None, 20.0),
        ("poisson:often of kill, seed 0", "list", ("kill",), None, None),
        ("poisson:1e999 of kill, seed 0", "list", ("kill",), None, None),
        ("kill@5s, stop:1s@8s, seed 0", "list", ("kill", "stop:1s"), None, None),
    ],
)
def test_a_schedule_is_read_from_its_words(text, short, kinds, rate, every_s):
    assert FaultSchedule.of(text) == FaultSchedule(text=text, short=short, kinds=kinds, rate=rate, every_s=every_s)


def named(head):
    """`head` with the name of its cell."""
    config = msgspec.convert(head, Header, dec_hook=decode_own).config
    return {**head, "cell": config.cell(head["data_source"]["fingerprint"])}


@pytest.fixture
def disturbed(results):
    """`ddp` without faults, and with one that takes 2.2 s of lost steps, 1 s to notice and 3.9 s to restart."""
    config = header("ddp")["config"]
    with_faults = {**config, "faults": "poisson:1 of kill, seed 0"}
    write_run(results, named(header("ddp")), FAULT_FREE)
    again = [*FAULT_FREE[:3], loss(10, 8.0, 1.0), ready(10, 3.0), FAULT_FREE[3]]
    run = write_run(results, named(header("ddp", config=with_faults)), again)
    hit = Hit(kind="kill", rank=1, at_s=5.0, seconds=0.0, time=BEGAN + 7.0, step=15)
    FaultRecord(began=BEGAN, hits=(hit,)).write(run.faults)
    return results


def test_a_run_with_faults_is_a_row_beside_the_same_run_without(disturbed):
    free, faulty, problems = load_all_runs(disturbed)
    assert (len(free), len(faulty), problems) == (1, 1, [])
    found = fault_results(free, faulty)
    none, one = found.rows
    assert none.schedule is None
    (run,) = one.runs
    assert run.wall.lost_s == pytest.approx(2.2)
    assert run.times == pytest.approx((11.5 + 4.9 - 1.0) / 8.7)
    assert run.simulated > 1
    assert fault_results(free, []) is None


def test_rows_of_one_label_and_other_settings_are_apart_in_the_table_and_the_chart(disturbed):
    """Two `ddp`, which differ in their threads: seeds of one row would be two runs of seed 0."""
    config = {**header("ddp")["config"], "threads": 2}
    write_run(disturbed, named(header("ddp", config=config, threads=2)), FAULT_FREE)
    again = {**config, "faults": "poisson:1 of kill, seed 0"}
    run = write_run(disturbed, named(header("ddp", config=again, threads=2)), FAULT_FREE)
    FaultRecord(began=BEGAN, hits=()).write(run.faults)
    report = build_report(disturbed)
    table = next(table for table in report.tables if "with faults" in table.title)
    assert len({str(row[0].text) for row in table.rows}) == 2
    assert len(table.rows) == 4
    plot = next(plot for plot in report.plots if plot.stem.endswith("-faults"))
    assert all(len(panel.series) == 2 for panel in plot.panels)


def test_a_broken_record_of_faults_is_a_failure_and_no_figure(disturbed):
    (faults,) = disturbed.glob("runs/*/faults.json")
    faults.write_text("{")
    (_, row) = fault_results(*load_all_runs(disturbed)[:2]).rows
    assert row.runs[0].wall is None
    assert "faults.json" in row.runs[0].failure


def test_runs_with_faults_that_have_no_counterpart_are_named(results):
    config = {**header("ddp")["config"], "faults": "poisson:1 of kill, seed 0"}
    write_run(results, named(header("ddp", config=config)), FAULT_FREE)
    write_run(results, named(header("ddp", seed=1)), FAULT_FREE)
    assert any(line.startswith("1 run with faults: the run without") for line in build_report(results).problems)


def test_a_run_that_is_at_its_target_before_it_trains_is_no_row(results):
    free = write_run(results, named(header("ddp")), FAULT_FREE[:2])
    config = {**header("ddp")["config"], "faults": "poisson:1 of kill, seed 0"}
    run = write_run(results, named(header("ddp", config=config)), FAULT_FREE[:2])
    FaultRecord(began=BEGAN, hits=()).write(run.faults)
    assert free.exists()
    assert fault_results(*load_all_runs(results)[:2]) is None


def test_the_report_and_its_page_have_the_table_and_the_chart(disturbed, tmp_path):
    report = build_report(disturbed)
    table = next(table for table in report.tables if "with faults" in table.title)
    (hits,) = (place for place, column in enumerate(table.columns) if column.key == "hits")
    assert [row[hits].value for row in table.rows] == [0, 1]
    plot = next(plot for plot in report.plots if plot.stem.endswith("-faults"))
    assert [panel.title for panel in plot.panels] == ["measured", "simulated"]
    assert plot.ticks == ("0", "1")
    page = page_html(build_page(report, tmp_path / "page.html"))
    assert "Seconds to the target with faults, over those without" in page
    assert "wall seconds to the end with faults" in page
