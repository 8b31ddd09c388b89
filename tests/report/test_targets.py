"""Levels of the metric in a report: the workload's, the user's, or shares of the best run's."""

import csv
import io
import json
import math

import pytest
from fake_runs import averaging_trace, evaluation, header, ramp, write_run
from read_tables import column, footer, group_of, printed, table_of

from istbench.report.plots.over_time import metric_over
from istbench.report.plots.time_to_target import time_by_nodes
from istbench.report.report import build_report
from istbench.report.tables.summary import run_summary
from istbench.report.targets import Target
from istbench.results.load import load_run

RECORDED = {
    "data": "words",
    "targets": [],
    "data_source": {"kind": "words", "fingerprint": "ab" * 32, "train": 200, "test": 100},
}


def write_two(results):
    """Runs that rise linearly, to 0.8 in eight seconds and to 0.76 in 7.6."""
    write_run(results, header("ddp", **RECORDED), ramp(8.0, 0.8))
    return write_run(results, header("ist", **RECORDED), ramp(7.6, 0.76))


def test_without_levels_the_targets_are_shares_of_the_best_final_metric(results):
    write_two(results)
    table = table_of(results)
    titles = [column.title for column in table.columns]
    assert "seconds to 90 % of best (0.720)" in titles
    assert "seconds to 98 % of best (0.784)" in titles
    entries = column(table, "train_s_to_0.9_of_best")
    assert entries["ddp", 2].value["level"] == pytest.approx(0.72)
    assert entries["ddp", 2].value["median"] == pytest.approx(7.2)
    assert column(table, "train_s_to_0.98_of_best")["ist", 2].text == "not reached in 7.60"
    assert column(table, "speed_up")["ist", 2].text.endswith(" to 95 % of best")
    assert column(table, "speed_up")["ist", 2].value["to_share_of_best"] == 0.95
    assert "shares of the best final accuracy among these runs, 0.800" in footer(table)


def test_the_best_is_that_of_finished_runs_and_of_their_ends(results):
    write_two(results)
    write_run(results, header("p3", status="failed", **RECORDED), ramp(1.0, 0.99))
    fell = [evaluation(0, 0.0, 0.1), evaluation(1, 1.0, 0.95), evaluation(2, 2.0, 0.4)]
    write_run(results, header("local_sgd", **RECORDED), fell)
    write_run(results, header("dslide", **RECORDED), [evaluation(0, 0.0, math.nan)])
    assert [target.level for target in group_of(results).targets] == pytest.approx([0.72, 0.76, 0.784])


def test_a_level_that_the_user_names_stands_for_itself(results):
    for method in ("ddp", "ist"):
        head = header(method, budget="stop at accuracy 0.5", **RECORDED)
        head["config"]["target"] = 0.5
        write_run(results, head, ramp(8.0, 0.8))
    assert group_of(results).targets == (Target(level=0.5),)
    assert "shares of the best" not in footer(table_of(results))


def test_levels_of_the_workload_stay_as_they_are(results):
    write_run(results, header(**{**RECORDED, "targets": [0.7, 0.8]}), ramp(9.0))
    table = table_of(results)
    assert [column.key for column in table.columns][3:5] == ["train_s_to_0.7", "train_s_to_0.8"]
    assert "level" not in column(table, "train_s_to_0.7")["ddp", 2].value
    assert "shares of the best" not in footer(table)


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ({"targets": [], "data_source": {**RECORDED["data_source"], "learnable": False}}, 0.8),
        (RECORDED, 0.0),
        (RECORDED, math.nan),
    ],
    ids=["noise is for throughput", "zero has no shares", "never a number"],
)
def test_where_there_is_nothing_to_take_a_share_of_there_are_no_targets(results, changed, value):
    write_run(results, header(**changed), [evaluation(0, 0.0, 0.0), evaluation(100, 9.0, value)])
    assert group_of(results).targets == ()
    report = build_report(results)
    assert [plot.stem.endswith("over-time") for plot in report.plots] == [True]
    assert not [column.key for column in report.tables[0].columns if "_to_" in column.key]


def test_a_summary_of_one_run_has_no_shares(results):
    table = run_summary(load_run(write_two(results)))
    assert [row[0].text for row in table.rows][:3] == ["status", "final accuracy", "best accuracy"]
    assert not [row for row in table.rows if "seconds to" in row[0].text]


def test_every_output_has_the_same_shares(results):
    write_two(results)
    report = build_report(results)
    (row, _) = csv.DictReader(io.StringIO(printed(report, "csv")[0]))
    assert float(row["train_s_to_0.95_of_best_level"]) == pytest.approx(0.76)
    (table,) = json.loads(printed(report, "json")[0])["tables"]
    assert table["rows"][0]["train_s_to_0.95_of_best"]["level"] == pytest.approx(0.76)
    assert "seconds to 95 % of best (0.760)" in printed(report, "markdown")[0]
    group = group_of(results)
    assert [panel.title for panel in time_by_nodes(group).panels] == [
        "to 90 % of best accuracy (0.720)",
        "to 95 % of best accuracy (0.760)",
        "to 98 % of best accuracy (0.784)",
    ]
    (panel,) = metric_over(group).panels
    assert panel.level_names == ("90 % of best", "95 % of best", "98 % of best")
    assert panel.levels == pytest.approx((0.72, 0.76, 0.784))


def test_on_a_cluster_the_shares_are_the_same(results):
    from fake_clusters import BARE

    trace = averaging_trace(2)
    write_run(results, header("ddp", **RECORDED), ramp(8.0, 0.8), trace=trace)
    report = build_report(results, cluster=BARE)
    keys = [column.key for table in report.tables for column in table.columns]
    assert "train_s_to_0.98_of_best" in keys
    assert "cluster_s_to_0.98_of_best" in keys
