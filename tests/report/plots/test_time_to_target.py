"""Time to target by bandwidth."""

import pytest
from fake_clusters import sweep_of, write_pair
from fake_runs import averaging_trace, evaluation, header, write_run

from istbench.report.output.pictures import draw_plots
from istbench.report.plots.time_to_target import time_by_bandwidth


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


def write_started_well(results, *targets):
    """A pair of runs that have an accuracy of 0.6 before their first step."""
    for method in ("ddp", "ist"):
        events = [evaluation(0, 0.0, 0.6), evaluation(100, 5.0, 0.9)]
        write_run(results, header(method, targets=list(targets)), events, trace=averaging_trace(2))


def test_what_is_reached_in_no_time_is_named_as_a_logarithmic_axis_has_no_zero(results):
    write_started_well(results, 0.5, 0.8)
    plot = time_by_bandwidth(sweep_of(results, 8e6, 8e7), 2)
    assert [[len(series.x) for series in panel.series] for panel in plot.panels] == [[0, 0], [2, 2]]
    assert plot.subtitle.endswith("one seed; in 0 s and not drawn: ddp, ist to 0.5")


def test_a_picture_of_nothing_but_what_is_reached_in_no_time_is_drawn(results):
    write_started_well(results, 0.5)
    plot = time_by_bandwidth(sweep_of(results, 8e6, 8e7), 2)
    assert len(draw_plots([plot], results / "report")) == 2
