"""The metric over time."""

import math

import pytest
from fake_runs import evaluation, header, ramp, write_plausible, write_run
from read_tables import group_of

from istbench.report.plots.over_time import metric_over


def test_a_panel_for_each_number_of_nodes_and_a_line_for_each_method(results):
    for nodes in (2, 4):
        write_plausible(results, "ddp", nodes=nodes)
        write_plausible(results, "ist", nodes=nodes)
    plot = metric_over(group_of(results))
    assert [panel.title for panel in plot.panels] == ["2 nodes", "4 nodes"]
    assert [series.label for series in plot.panels[0].series] == ["ddp", "ist"]
    assert plot.panels[0].levels == (0.7, 0.8)
    assert "SYNTHETIC" in plot.title


def test_a_line_is_the_median_at_equal_time_and_ends_with_the_first_seed_to_end(results):
    for seed, seconds in enumerate([10.0, 20.0, 40.0]):
        write_run(results, header(seed=seed), ramp(seconds, 0.8)[::2])
    (series,) = metric_over(group_of(results)).panels[0].series
    assert series.x == (0.0, 10.0)
    assert series.y == pytest.approx((0.0, 0.4))
    assert series.low == pytest.approx((0.0, 0.2))
    assert series.high == pytest.approx((0.0, 0.8))


def test_an_evaluation_without_a_number_leaves_a_gap_not_a_wrong_point(results):
    events = [evaluation(0, 0.0, 0.1), evaluation(1, 1.0, math.nan), evaluation(2, 2.0, 0.3)]
    write_run(results, header(), events)
    (series,) = metric_over(group_of(results)).panels[0].series
    assert series.x == (0.0, 2.0)


def test_a_run_that_sends_nothing_has_no_curve_over_traffic_and_is_named(results):
    for nodes in (1, 2):
        write_plausible(results, "ddp", nodes=nodes)
    write_plausible(results, "ist", nodes=2)
    plot = metric_over(group_of(results), "traffic")
    assert [(panel.title, len(panel.series)) for panel in plot.panels] == [("2 nodes", 2)]
    assert plot.subtitle.endswith("; ddp on 1 node sent nothing")
    assert len(metric_over(group_of(results), "steps").panels) == 2


def test_runs_that_all_send_nothing_have_no_panel_over_traffic(results):
    write_plausible(results, "ddp", nodes=1)
    plot = metric_over(group_of(results), "traffic")
    assert plot.panels == ()
    assert "ddp on 1 node sent nothing" in plot.subtitle


def test_far_apart_methods_get_a_logarithmic_time_axis_without_time_zero(results):
    write_run(results, header("ist"), ramp(1.0))
    write_run(results, header("ddp"), ramp(100.0))
    plot = metric_over(group_of(results))
    assert plot.x_scale == "log"
    assert all(x > 0 for series in plot.panels[0].series for x in series.x)
