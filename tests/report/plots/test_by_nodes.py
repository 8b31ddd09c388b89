"""Time to each target by number of nodes."""

import pytest
from fake_runs import header, ramp, write_run
from read_tables import group_of

from istbench.report.plots.time_to_target import time_by_nodes
from istbench.report.report import build_report


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


def test_one_number_of_nodes_is_no_chart(results):
    for method in ("ist", "ddp"):
        write_run(results, header(method), ramp(9.0))
    assert [plot.kind for plot in build_report(results).plots] == ["lines"]
