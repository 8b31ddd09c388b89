"""Plots as data, and the files drawn of them."""

import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from fake_runs import evaluation, header, write_plausible, write_run
from test_tables import ramp

from istbench.errors import UserError
from istbench.report.groups import group_runs
from istbench.report.output.pictures import draw_plots
from istbench.report.palette import method_styles
from istbench.report.plots.by_nodes import time_by_nodes
from istbench.report.plots.over_time import metric_over_time
from istbench.report.report import build_report
from istbench.results.load import load_runs


def group_of(results):
    (group,) = group_runs(load_runs(results)[0])
    return group


def pictures_of(results):
    return draw_plots(build_report(results).plots, results / "report")


def test_a_panel_for_each_number_of_nodes_and_a_line_for_each_method(results):
    for nodes in (2, 4):
        write_plausible(results, "ddp", nodes=nodes)
        write_plausible(results, "ist", nodes=nodes)
    plot = metric_over_time(group_of(results))
    assert [panel.title for panel in plot.panels] == ["2 nodes", "4 nodes"]
    assert [series.label for series in plot.panels[0].series] == ["ddp", "ist"]
    assert plot.panels[0].levels == (0.7, 0.8)
    assert "SYNTHETIC" in plot.title


def test_a_line_is_the_median_at_equal_time_and_ends_with_the_first_seed_to_end(results):
    for seed, seconds in enumerate([10.0, 20.0, 40.0]):
        write_run(results, header(seed=seed), ramp(seconds, 0.8))
    (series,) = metric_over_time(group_of(results)).panels[0].series
    assert series.x == (0.0, 10.0)
    assert series.y == pytest.approx((0.0, 0.4))
    assert series.low == pytest.approx((0.0, 0.2))
    assert series.high == pytest.approx((0.0, 0.8))


def test_an_evaluation_without_a_number_leaves_a_gap_not_a_wrong_point(results):
    events = [evaluation(0, 0.0, 0.1), evaluation(1, 1.0, math.nan), evaluation(2, 2.0, 0.3)]
    write_run(results, header(), events)
    (series,) = metric_over_time(group_of(results)).panels[0].series
    assert series.x == (0.0, 2.0)


def test_far_apart_methods_get_a_logarithmic_time_axis_without_time_zero(results):
    write_run(results, header("ist"), ramp(1.0))
    write_run(results, header("ddp"), ramp(100.0))
    plot = metric_over_time(group_of(results))
    assert plot.x_scale == "log"
    assert all(x > 0 for series in plot.panels[0].series for x in series.x)


def test_time_by_nodes_keeps_misses_apart(results):
    for nodes, value in ((1, 0.9), (2, 0.75), (8, 0.9)):
        write_run(results, header("ist", nodes=nodes), ramp(9.0, value))
    plot = time_by_nodes(group_of(results))
    assert [panel.title for panel in plot.panels] == ["to accuracy 0.7", "to accuracy 0.8"]
    (series,) = plot.panels[1].series
    assert (series.x, series.missed) == ((0.0, 2.0), (1.0,))
    assert series.y == pytest.approx((8.0, 8.0))
    assert plot.ticks == ("1", "2", "8")
    assert plot.y_scale == "log"


def test_a_method_looks_the_same_whatever_it_is_compared_with():
    alone = method_styles([("ist", "ist")])["ist"]
    among = method_styles([("ddp", "ddp"), ("ist", "ist"), ("ist", "ist lr=1"), ("mine", "mine")])
    assert among["ist"] == alone
    assert among["ist lr=1"].colour == alone.colour
    assert among["ist lr=1"].line != alone.line
    assert among["ist lr=1"].marker != alone.marker
    assert among["mine"] == method_styles([("mine", "mine")])["mine"]
    assert len({style.colour for style in among.values()}) == 3


def test_pictures_are_written_under_safe_names_as_png_and_svg(results):
    label = "../../we ird/$x^{$ <b>"
    write_run(results, header("ist", workload_label=label, method_label="ist $\\frac{ <i>"), ramp(9.0))
    paths = pictures_of(results)
    assert len(paths) == 4
    for path in paths:
        assert path.parent == results / "report"
        assert path.name.isascii()
        assert not set(path.name) & set("/\\$<> {}")
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            ElementTree.parse(path)
    assert pictures_of(results) == paths


def test_pictures_of_nothing_reached_and_of_diverged_runs_are_drawn(results):
    write_run(results, header("ddp"), ramp(9.0, 0.1))
    write_run(results, header("ist"), [evaluation(0, 0.0, math.nan), evaluation(1, 0.0, math.nan)])
    assert len(pictures_of(results)) == 4


def test_an_open_ended_interval_is_drawn(results):
    for seed, value in enumerate([0.9, 0.9, 0.5]):
        write_run(results, header("ddp", seed=seed), ramp(9.0 + seed, value))
    assert len(pictures_of(results)) == 4


def test_a_report_on_unfinished_runs_draws_nothing(results):
    write_run(results, header(status="running"), [])
    assert pictures_of(results) == []


def test_a_folder_that_cannot_be_written_is_named(results):
    write_plausible(results, "ddp")
    (results / "report").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write pictures to .*report.*--no-pictures"):
        pictures_of(results)


def test_reports_start_without_torch_pandas_or_matplotlib():
    program = (
        "import sys, istbench.report.report, istbench.report.output.formats;"
        "print([name for name in ('torch', 'pandas', 'matplotlib', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
