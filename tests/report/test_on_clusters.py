"""A report on runs as they would have gone on other clusters."""

import pytest
from fake_clusters import M5
from fake_runs import averaging_trace, header, ramp, write_plausible, write_run
from read_tables import footer

from istbench.cluster.profile import select_clusters
from istbench.errors import UserError
from istbench.report.on_clusters import build_report_on_clusters
from istbench.report.output.pictures import draw_plots


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
