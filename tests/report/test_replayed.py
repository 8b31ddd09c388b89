"""Runs on a cluster's clock, and the tables and pictures of them."""

import csv
import dataclasses
import io
import json
import math

import pytest
from fake_runs import averaging_trace, evaluation, header, write_plausible, write_run
from test_tables import column, footer, ramp

from istbench.cluster.clock import cluster_time
from istbench.cluster.profile import load_profile
from istbench.cluster.selection import select_clusters
from istbench.cluster.trace_file import load_trace
from istbench.errors import UserError
from istbench.report.groups import group_runs
from istbench.report.on_clusters import build_report_on_clusters
from istbench.report.output.csv_rows import tables_csv
from istbench.report.output.pictures import draw_plots
from istbench.report.plots.by_bandwidth import time_by_bandwidth
from istbench.report.report import build_report
from istbench.report.sweep import Sweep
from istbench.report.tables.crossings import crossings, crossings_table
from istbench.report.tables.summary import run_summary
from istbench.results.frame import evaluations_frame
from istbench.results.load import load_run, load_runs
from istbench.results.on_cluster import runs_on_clusters

M5 = load_profile("m5.2xlarge")
# Machines as fast as the one that recorded, on links whose only cost is bytes: 1 MB/s.
BARE = dataclasses.replace(M5, gflops=100.0, latency_s=0.0, overhead_s=0.0, bandwidth_out=8e6, bandwidth_in=8e6)


def sweep_of(results, *bandwidths):
    """The runs in `results`, on bare links of so many bits/s."""
    profiles = [BARE.with_bandwidth(bits) for bits in bandwidths]
    on_clusters, problems = runs_on_clusters(load_runs(results)[0], profiles)
    assert problems == []
    at_each = zip(profiles, on_clusters, strict=True)
    groups = [group for profile, runs in at_each for group in group_runs(runs, profile=profile)]
    assert len(groups) == len(profiles)
    return Sweep(cluster="bare", groups=tuple(groups))


def write_pair(results, **changed):
    """ddp: 10 ms and 1 MB a step, there in 100 steps; local_sgd: 30 ms a step, 1 MB in ten, there in as many."""
    for method, compute, every in (("ddp", 0.01, 1), ("local_sgd", 0.03, 10)):
        trace = averaging_trace(2, compute=(compute,), local_steps=every)
        write_run(results, header(method, **changed), ramp(5.0), trace=trace)


def test_a_replayed_run_keeps_its_evaluations_and_changes_when_they_were(results):
    directory = write_plausible(results, "local_sgd", nodes=4, traced=True)
    run = load_run(directory)
    ((replayed,),), problems = runs_on_clusters([run], [M5])
    assert problems == []
    assert replayed.curve.values == run.curve.values
    steps = [evaluation.step for evaluation in run.curve.evaluations]
    assert list(replayed.curve.seconds()) == list(cluster_time(load_trace(directory.trace), M5, steps).seconds)
    assert replayed.header["clock"] == "cluster_s"
    assert replayed.header["host"] == {"name": "m5.2xlarge"}
    assert replayed.header["config"] == run.header["config"]
    assert run.cluster is None


def test_runs_without_a_sound_trace_are_named_and_the_others_replayed(results):
    write_plausible(results, "ddp", traced=True)
    write_plausible(results, "ist")
    write_plausible(results, "p3")
    cut = write_plausible(results, "local_sgd", traced=True)
    cut.trace.write_bytes(cut.trace.read_bytes()[:200])
    uncalibrated = averaging_trace(2, gflops=None)
    write_run(results, header("ddp", seed=1), ramp(9.0), trace=uncalibrated)
    (replayed,), problems = runs_on_clusters(load_runs(results)[0], [M5])
    assert [run.header.cell for run in replayed] == ["speech-ddp-n2-s0"]
    calibration, torn, untraced = problems
    assert calibration.startswith("speech-ddp-n2-s1: the trace does not say how fast")
    assert "trace.npz is cut short" in torn
    assert untraced.endswith("two whole rounds of training: speech-ist-n2-s0, speech-p3-n2-s0")


def test_unfinished_runs_stand_below_the_table_of_the_others(results):
    write_plausible(results, "ddp", traced=True)
    write_run(results, header("ist", status="interrupted"), [])
    report = build_report_on_clusters(results, {"m5.2xlarge": [M5]})
    assert "Not counted: 1 of 2 runs: ist on 2 nodes seed 0 (interrupted)" in footer(report.tables[0])


def test_replayed_tables_say_whose_clock_it_is_and_what_it_costs(results):
    write_pair(results)
    table, spent = build_report_on_clusters(results, {"bare": [dataclasses.replace(BARE, name="bare")]}).tables
    # At accuracy 0.8 of a ramp to 0.9, 100 steps: 8/9 of 100 x (0.01 + 1) s.
    cell = column(table, "cluster_s_to_0.8")["ddp", 2]
    assert cell.value["median"] == pytest.approx(101 * 8 / 9)
    assert cell.value["dollars"] == pytest.approx(101 * 8 / 9 * 2 * 0.384 / 3600)
    assert table.context["clock"] == "cluster_s"
    assert table.context["host"] == "bare"
    assert "replayed seconds to accuracy on bare" in table.title
    for expected in ("recorded on cpu, replayed on bare", "100 GFLOP/s", "8 Mbit/s out and in"):
        assert expected in footer(table)
    assert column(table, "speed_up")["local_sgd", 2].value["ratio"] == pytest.approx(101 / 13)
    figures = {key: column(spent, key)["local_sgd", 2].value for key in (c.key for c in spent.columns)}
    # 100 steps of 2 x 256 / 2 samples in 3 s of computing and 10 s of averaging.
    assert figures["samples_per_s"] == pytest.approx(100 * 256 / 13)
    assert figures["compute_percent"] == pytest.approx(100 * 3 / 13)
    assert figures["communication_percent"] == pytest.approx(100 * 10 / 13)
    assert figures["idle_percent"] == pytest.approx(0)
    assert figures["link_use_percent"] == pytest.approx(100 * 10 / 13)
    assert figures["dollars_per_hour"] == pytest.approx(0.768)
    assert figures["cluster_s"] == pytest.approx(13)
    assert figures["dollars"] == pytest.approx(0.768 * 13 / 3600)


def test_a_miss_costs_no_number_of_dollars(results):
    trace = averaging_trace(2)
    write_run(results, header(), ramp(9.0, 0.5), trace=trace)
    table = build_report_on_clusters(results, {"bare": [BARE]}).tables[0]
    value = column(table, "cluster_s_to_0.8")["ddp", 2].value
    assert (value["median"], value["dollars"]) == (None, None)


def test_csv_has_one_line_a_row_with_times_and_where_they_go(results):
    write_pair(results)
    text = tables_csv(build_report_on_clusters(results, {"bare": [BARE]}).tables)
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["method"], second["method"]) == ("ddp", "local_sgd")
    assert float(first["cluster_s_to_0.8_median"]) < float(first["cluster_s"])
    assert float(first["compute_percent"]) < float(second["compute_percent"])


def test_the_report_has_the_cluster_after_the_machine(results):
    write_plausible(results, "ddp", traced=True)
    write_plausible(results, "ist")
    report = build_report(results, cluster=M5)
    assert [table.context["clock"] for table in report.tables] == ["train_s", "cluster_s", "cluster_s"]
    assert [len(table.rows) for table in report.tables] == [2, 1, 1]
    assert report.tables[0] == build_report(results).tables[0]
    assert report.problems[0].endswith("speech-ist-n2-s0")


def test_a_report_on_runs_without_any_trace_has_no_table_of_the_cluster(results):
    write_plausible(results, "ddp")
    assert len(build_report(results, cluster=M5).tables) == 1


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


def test_methods_cross_where_their_times_are_equal(results):
    """ddp takes 1 + 8e8/b seconds for its 100 steps, local_sgd 3 + 8e7/b: equal at 3.6e8 bits/s."""
    write_pair(results)
    (at_07, at_08) = crossings(sweep_of(results, 3.5e8, 3.7e8))
    assert (at_07.below, at_07.above, at_07.nodes, at_07.level) == ("local_sgd", "ddp", 2, 0.7)
    assert at_07.bandwidth == pytest.approx(3.6e8, rel=1e-3)
    assert at_08.bandwidth == pytest.approx(at_07.bandwidth)
    assert crossings(sweep_of(results, 1e6, 1e7, 1e8)) == []
    # Through a tie on one of the bandwidths, they cross once.
    tied = sweep_of(results, 3.6e8 / 1.01, 3.6e8, 3.6e8 * 1.01)
    assert [crossing.bandwidth for crossing in crossings(tied)] == pytest.approx([3.6e8] * 2, rel=1e-3)


def test_a_method_that_missed_the_target_overtakes_nobody(results):
    write_pair(results)
    trace = averaging_trace(2, compute=(0.02,), size=1)
    write_run(results, header("ist"), ramp(1.0, 0.75), trace=trace)
    of_ist = [found for found in crossings(sweep_of(results, 1e6, 1e12)) if "ist" in (found.below, found.above)]
    assert [(found.below, found.above, found.level) for found in of_ist] == [("ist", "ddp", 0.7)]


def test_crossings_in_words(results):
    write_pair(results)
    table = crossings_table(sweep_of(results, 3.5e8, 3.7e8))
    assert [cell.text for cell in table.rows[1]] == ["local_sgd overtakes ddp below 360 Mbit/s", "2", "0.8"]
    assert table.rows[1][0].value["ahead_below"] == "local_sgd"
    json.dumps([cell.value for cell in table.rows[0]])
    none = crossings_table(sweep_of(results, 1e6, 1e7))
    assert none.rows == ()
    assert none.empty == "No method overtakes another between 1 Mbit/s and 10 Mbit/s."


def test_the_picture_has_a_panel_for_the_highest_two_targets_reached(results):
    levels = [0.5, 0.6, 0.7, 0.95]
    write_pair(results, targets=levels)
    plot = time_by_bandwidth(sweep_of(results, 8e6, 8e7, 8e8), 2)
    assert [panel.title for panel in plot.panels] == ["to accuracy 0.6", "to accuracy 0.7"]
    ddp, local_sgd = plot.panels[1].series
    assert ddp.x == (8e6, 8e7, 8e8)
    assert ddp.y == pytest.approx([7 / 9 * (1 + 8e8 / bits) for bits in ddp.x])
    assert local_sgd.y == pytest.approx([7 / 9 * (3 + 8e7 / bits) for bits in ddp.x])
    assert (plot.x_scale, plot.y_scale) == ("log", "log")
    assert plot.ticks == ("10 Mbit/s", "100 Mbit/s")


@pytest.mark.parametrize(
    ("bandwidths", "ticks"),
    [
        ((1e8, 1e9, 1e10), ("100 Mbit/s", "1 Gbit/s", "10 Gbit/s")),
        ((2e8, 3e8, 5e8), ("200 Mbit/s", "300 Mbit/s", "500 Mbit/s")),
        ((2e8, 3e8, 4e8, 6e8), ("200 Mbit/s", "300 Mbit/s", "600 Mbit/s")),
        ((1e3, 1e12), ("1 kbit/s", "1 Mbit/s", "1 Gbit/s", "1 Tbit/s")),
    ],
)
def test_ticks_are_few_and_have_units(results, bandwidths, ticks):
    write_pair(results)
    assert time_by_bandwidth(sweep_of(results, *bandwidths), 2).ticks == ticks


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
    assert len(one.plots) == 2 * 2 + 1


def test_a_sweep_on_which_nothing_reached_its_target_is_drawn(results):
    write_run(results, header(), ramp(9.0, 0.1), trace=averaging_trace(2))
    report = build_report_on_clusters(results, select_clusters(["m5.2xlarge"], [1e8, 1e9]))
    assert len(draw_plots(report.plots, results / "report")) == 10


def test_the_summary_of_a_run_on_a_cluster(results):
    run = load_run(write_run(results, header(), ramp(9.0, 0.75), trace=averaging_trace(2)))
    ((replayed,),), _ = runs_on_clusters([run], [BARE])
    items = {row[0].text: row[1] for row in run_summary(run, replayed).rows}
    assert items["m5.2xlarge seconds"].value == pytest.approx(101)
    assert items["m5.2xlarge seconds to accuracy 0.7"].value == pytest.approx(101 * 0.7 / 0.75)
    assert items["m5.2xlarge seconds to accuracy 0.8"].text == "not reached"
    assert items["m5.2xlarge dollars"].value == pytest.approx(101 * 2 * 0.384 / 3600)
    assert items["train seconds"].value == 9.0


def test_a_data_frame_with_cluster_seconds(results):
    write_run(results, header(), [evaluation(0, 0.0, 0.1), evaluation(10, 3.0, 0.5)], trace=averaging_trace(2))
    write_run(results, header("ist"), ramp(9.0))
    frame = evaluations_frame(results, BARE)
    assert frame[frame.method == "ddp"].cluster_s.tolist() == pytest.approx([0.0, 10.1])
    assert all(math.isnan(value) for value in frame[frame.method == "ist"].cluster_s)
    assert "cluster_s" not in evaluations_frame(results)
