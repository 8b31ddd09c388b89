"""A report on runs as they would have gone on other clusters."""

import dataclasses
import json
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest
from fake_clusters import M5
from fake_runs import averaging_trace, header, ramp, write_plausible, write_run
from read_tables import footer

from istbench.base.errors import UserError
from istbench.cluster.faults import Faults
from istbench.cluster.profile import select_clusters
from istbench.cluster.speed import StepWork
from istbench.report.output.pictures import draw_plots
from istbench.report.report import build_report_on_clusters


def test_unfinished_runs_stand_below_the_table_of_the_others(results):
    write_plausible(results, "ddp", traced=True)
    write_run(results, header("ist", status="interrupted"), [])
    report = build_report_on_clusters(results, {"m5.2xlarge": [M5]})
    assert "Not counted: 1 of 2 runs: ist on 2 nodes seed 0 (interrupted)" in footer(report.tables[0])


def test_nothing_to_replay_is_an_error_with_the_reason(results):
    directory = write_plausible(results, "ddp")
    clusters = select_clusters(["m5.2xlarge"])
    with pytest.raises(UserError, match=r"nothing to replay in .*results: no trace to replay.*ddp-n2-s0"):
        build_report_on_clusters(results, clusters)
    with pytest.raises(UserError, match="nothing to replay in .*ddp-n2-s0: no trace"):
        build_report_on_clusters(directory.path, clusters)
    write_run(results / "other", header(status="failed"), [])
    with pytest.raises(UserError, match="no run is finished"):
        build_report_on_clusters(results / "other", clusters)


def test_a_run_that_one_cluster_cannot_replay_stays_on_the_others(results):
    write_run(results, header("ddp"), ramp(9.0), trace=averaging_trace())
    trace = averaging_trace()
    work = StepWork(operations=1e6, bytes=1e6, gathered=1e6)
    sparse = dataclasses.replace(trace, meta=msgspec.structs.replace(trace.meta, work=work))
    write_run(results, header("dslide"), ramp(8.0), trace=sparse)
    report = build_report_on_clusters(results, select_clusters(["p3.2xlarge", "m5.2xlarge"]))
    rows = {group.profile.name: [row.method for row in group.contenders] for group in report.groups}
    assert rows == {"p3.2xlarge": ["ddp"], "m5.2xlarge": ["ddp", "dslide"]}
    (problem,) = report.problems
    assert problem.startswith("speech-dslide-n2-s0 on p3.2xlarge: a node of p3.2xlarge computes on a GPU")


def write_check(results, method, error, *, name="toy-n2"):
    (results / "validation").mkdir(exist_ok=True)
    measured = {"method": method, "nodes": 2, "bandwidth": "1gbit", "measured_s": 1.0, "replayed_s": 1 + error}
    (results / "validation" / f"{name}.json").write_text(json.dumps([measured]))


def test_replays_that_were_never_checked_or_were_off_say_so_in_every_replayed_table(results):
    for method in ("ddp", "local_sgd", "mine", "yours"):
        write_run(results, header(method), ramp(9.0), trace=averaging_trace())
    for method in ("ddp", "local_sgd"):
        write_check(results, method, 0.01, name=method)

    def said():
        clusters = select_clusters(["m5.2xlarge"], [1e8, 1e9])
        tables = build_report_on_clusters(results, clusters).tables
        lines = {line for table in tables for line in table.footer if "in a lab" in line}
        assert len(tables) == 5
        assert all(any(line in table.footer for line in lines) for table in tables) or not lines
        return "".join(lines)

    assert said() == (
        "Careful: replays of mine and yours were never checked in a lab: `istbench lab validate --methods "
        "mine,yours` checks them."
    )
    write_check(results, "mine", 0.097, name="mine")
    write_check(results, "yours", 0.049, name="yours")
    assert said() == "Careful: replays of mine were off by up to 9.7% in a lab (1gbit on 2 nodes)."
    write_check(results, "mine", -0.01, name="mine")
    assert said() == ""


def test_unreadable_checks_are_one_problem_and_the_replays_stay(results):
    for method in ("ddp", "ist"):
        write_plausible(results, method, traced=True)
    (results / "validation").mkdir()
    (results / "validation" / "toy-n2.json").write_text("[{}]")
    report = build_report_on_clusters(results, {"m5.2xlarge": [M5]})
    assert len(report.problems) == 1
    assert "toy-n2.json" in report.problems[0]
    assert len(report.tables[0].rows) == 2


def test_pictures_of_every_cluster_bandwidth_and_number_of_nodes(results):
    for nodes in (2, 4):
        write_plausible(results, "ddp", nodes=nodes, traced=True)
        write_plausible(results, "ist", nodes=nodes, traced=True, best=0.6)
    clusters = select_clusters(["m5.2xlarge"], [1e8, 1e9])
    report = build_report_on_clusters(results, clusters)
    names = [path.name for path in draw_plots(report.plots, results / "report") if path.suffix == ".png"]
    assert sum("at-100-Mbit-s" in name for name in names) == 2
    assert sum("by-bandwidth-n2" in name for name in names) == 1
    assert len(set(names)) == len(names) == 2 * 2 + 2
    one = build_report_on_clusters(results / "runs" / "speech-ddp-n2-s0", clusters)
    assert len(one.plots) == 2 + 1  # one number of nodes is no axis


def test_a_sweep_on_which_nothing_reached_its_target_is_drawn(results):
    write_run(results, header(), ramp(9.0, 0.1), trace=averaging_trace(2))
    report = build_report_on_clusters(results, select_clusters(["m5.2xlarge"], [1e8, 1e9]))
    assert len(draw_plots(report.plots, results / "report")) == 6


def redeal(run, trace, nodes):
    header = msgspec.structs.replace(run.header, nodes=nodes)
    return dataclasses.replace(run, header=header, extrapolated_from=run.header.nodes), averaging_trace(nodes)


def test_pictures_mark_numbers_of_nodes_that_were_never_run(results):
    write_run(results, header("ddp"), ramp(9.0), trace=averaging_trace())
    write_run(results, header("ist", nodes=4), ramp(9.0, 0.6), trace=averaging_trace(4))
    clusters = select_clusters(["m5.2xlarge"], [1e8, 1e9])
    report = build_report_on_clusters(results, clusters, levels=(0.5, 0.7), nodes=[4], redeal=redeal)
    by_nodes, over_time, on_two, on_four = (
        next(plot for plot in report.plots if plot.stem.endswith(end))
        for end in ("-time-to-target", "-over-time", "-n2", "-n4")
    )
    for panel in by_nodes.panels:
        assert {series.label: series.extrapolated for series in panel.series} == {"ddp": (1.0,), "ist": ()}
    marked = [[bool(series.extrapolated) for series in panel.series] for panel in over_time.panels]
    assert marked == [[False], [True, False]]
    assert [[series.extrapolated for series in panel.series] for panel in on_two.panels] == [[()]] * 2
    assert [series.extrapolated for series in on_four.panels[0].series] == [(1e8, 1e9), ()]
    named = {path.stem: path for path in draw_plots(report.plots, results / "report") if path.suffix == ".svg"}
    for plot in (by_nodes, over_time, on_two, on_four):
        words = [text.strip() for text in ElementTree.parse(named[plot.stem]).getroot().itertext()]
        assert ("extrapolated" in words) == (plot is not on_two)


def test_faults_add_their_seconds_and_the_shares_make_the_whole(results):
    write_plausible(results, "ddp", traced=True)
    write_plausible(results, "ist", traced=True)
    faults = Faults(mtbf_s=20.0, restart_s=3.0, checkpoint_s=1.0)
    report = build_report_on_clusters(results, {"m5.2xlarge": [M5]}, faults=faults)
    table = report.overview[-1]
    assert table in report.tables
    assert "with faults" in table.title
    for row in table.rows:
        value = dict(zip([column.key for column in table.columns], (entry.value for entry in row), strict=True))
        assert value["faulty_s"]["low"] <= value["faulty_s"]["median"] <= value["faulty_s"]["high"]
        kept = 1 - (value["lost_percent"] + value["restarting_percent"]) / 100
        assert value["times_fault_free"] == pytest.approx(1 / kept)
        assert value["times_fault_free"] > 1
    assert any("of each node one in 20 s on average" in line for line in table.footer)
    assert build_report_on_clusters(results, {"m5.2xlarge": [M5]}).overview == report.overview[:-1]


def test_a_row_that_misses_the_target_has_no_seconds_with_faults(results):
    write_run(results, header("ddp"), ramp(9.0, 0.9), trace=averaging_trace())
    write_run(results, header("ist"), ramp(9.0, 0.1), trace=averaging_trace())
    faults = Faults(mtbf_s=1e9, restart_s=3.0, checkpoint_s=1.0)
    (*_, table) = build_report_on_clusters(results, {"m5.2xlarge": [M5]}, faults=faults).overview
    column = [column.key for column in table.columns].index("faulty_s")
    assert {row[0].text: row[column].value is None for row in table.rows} == {"ddp": False, "ist": True}


DIVERGED = {"status": "failed", "error": "the loss became nan at step 60"}


@pytest.mark.parametrize("ending", [{}, DIVERGED])
def test_a_seed_that_misses_counts_as_infinite_with_faults(results, ending):
    write_run(results, header("ddp", seed=0), ramp(9.0, 0.9), trace=averaging_trace())
    write_run(results, header("ddp", seed=1, **ending), ramp(9.0, 0.1), trace=averaging_trace())
    faults = Faults(mtbf_s=1e9, restart_s=3.0, checkpoint_s=1.0)
    (*_, table) = build_report_on_clusters(results, {"m5.2xlarge": [M5]}, faults=faults).overview
    (row,) = table.rows
    entry = row[[column.key for column in table.columns].index("faulty_s")]
    assert entry.text.endswith("–∞] 1/2")
    assert entry.value["high"] is None
