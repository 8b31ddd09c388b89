"""Specifications of charts, drawn by another implementation of Vega-Lite than the page's."""

import dataclasses
import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from fake_clusters import sweep_of, write_pair
from fake_runs import averaging_trace, evaluation, header, ramp, write_plausible, write_run
from read_tables import group_of

from istbench.report.map import winner_map
from istbench.report.output.html.vega_lite import bars_spec, map_spec, map_width, panel_specs, panel_text
from istbench.report.palette import on_dark
from istbench.report.plots.over_time import metric_over
from istbench.report.plots.plot import Bar, Bars
from istbench.report.plots.shares import time_shares
from istbench.report.plots.time_to_target import time_by_bandwidth, time_by_nodes

vl_convert = pytest.importorskip(
    "vl_convert", reason="vl-convert-python is not installed: pip install -e '.[test]'"
)

SVG = "{http://www.w3.org/2000/svg}"


def drawn(spec):
    """The texts and the number of lines in the picture of `spec`."""
    sized = {**spec, "width": 400}
    picture = ElementTree.fromstring(
        vl_convert.vegalite_to_svg(json.dumps(sized, allow_nan=False), vl_version="6.4")
    )
    lines = [path for path in picture.iter(f"{SVG}path") if "stroke-dasharray" in path.attrib]
    texts = picture.iter(f"{SVG}text")
    return [line.text for text in texts for line in ([*text] or [text])], lines


def of_layer(spec, mark):
    return [layer for layer in spec["layer"] if layer["mark"]["type"] == mark]


def values(spec, kind):
    return {
        (row["label"], row.get("seed")): list(zip(row["x"], row["y"], strict=True))
        for row in spec["data"]["values"]
        if row["kind"] == kind
    }


def test_curves_have_each_seed_thin_and_the_median_thick(results):
    for seed, seconds in enumerate([10.0, 20.0]):
        write_run(results, header("ist", seed=seed), ramp(seconds, 0.8)[::2])
    write_run(results, header("ddp"), ramp(12.0, 0.9)[::2])
    plot = metric_over(group_of(results))
    (spec,) = panel_specs(plot)
    assert values(spec, "seed") == {("ist", 0): [(0, 0), (10, 0.8)], ("ist", 1): [(0, 0), (20, 0.8)]}
    assert values(spec, "median") == {("ist", None): [(0, 0), (10, 0.6)], ("ddp", None): [(0, 0), (12, 0.9)]}
    thin, thick = (layer["mark"]["strokeWidth"] for layer in of_layer(spec, "line"))
    assert thin < thick / 2
    texts, lines = drawn(spec)
    assert {"0.7", "0.8", "train time (s)", "test accuracy"} <= set(texts)
    assert len(lines) >= 4
    assert panel_text(plot, plot.panels[0]) == (
        "2 nodes: test accuracy over train time (s). ddp: from 0 to 0.9 at 12. ist: from 0 to 0.6 at 10."
    )


def test_curves_far_from_zero_have_digits_for_their_own_span(results):
    heights = (-14123.456, -14121.234, -14120.125)
    head = header("ddp", targets=[-14121.0])
    write_run(results, head, [evaluation(at, float(at), height) for at, height in enumerate(heights)])
    (spec,) = panel_specs(metric_over(group_of(results), "steps"))
    assert [y for _, y in values(spec, "median")["ddp", None]] == pytest.approx(heights, abs=1e-3)


@pytest.mark.parametrize(("along", "x"), [("steps", (0, 10, 100)), ("traffic", (0, 0.2, 2))])
def test_curves_over_steps_and_traffic(results, along, x):
    write_run(results, header("ist"), ramp(10.0))
    plot = metric_over(group_of(results), along)
    assert plot.panels[0].series[0].x == x
    drawn(panel_specs(plot)[0])


def test_misses_open_ranges_and_nodes_that_never_ran_are_drawn(results):
    for nodes, best in ((2, 0.9), (4, 0.75), (8, 0.9)):
        for seed in range(3):
            write_run(results, header("ist", nodes=nodes, seed=seed), ramp(9.0, best if seed else 0.9))
    write_run(results, header("ddp", nodes=2), ramp(19.0))
    plot = time_by_nodes(group_of(results))
    for spec in panel_specs(plot):
        texts, _ = drawn(spec)
        assert {"2", "4", "8", "nodes", "not reached"} <= set(texts)
    assert "ist: 8 at 2, 8 at 8, not reached at 4." in panel_text(plot, plot.panels[1])


def test_names_of_near_targets_do_not_overlap(results):
    write_run(results, header("ddp", targets=[0.3, 0.75, 0.76, 0.77, 0.9]), ramp(9.0, 0.95))
    (spec,) = panel_specs(metric_over(group_of(results)))
    (texts,) = of_layer(spec, "text")
    named = {row["name"]: row for row in texts["data"]["values"]}
    low, high = spec["encoding"]["y"]["scale"]["domain"]
    lowered = {name: 260 * (row["level"] - low) / (high - low) - row["shift"] for name, row in named.items()}
    heights = [lowered[name] for name in ("0.3", "0.75", "0.76", "0.77", "0.9")]
    assert all(upper - lower > 11.5 for lower, upper in pairwise(heights))
    assert [named[name]["shift"] for name in ("0.3", "0.76", "0.9")] == [0, 0, 0]
    shown, _ = drawn(spec)
    assert {"0.75", "0.76", "0.77"} <= set(shown)


def test_bandwidths_have_names_and_a_logarithmic_axis(results):
    write_pair(results)
    plot = time_by_bandwidth(sweep_of(results, 1e7, 1e8, 1e9), 2)
    texts, _ = drawn(panel_specs(plot)[0])
    assert {"10 Mbit/s", "100 Mbit/s", "1 Gbit/s", "bandwidth of a node's link"} <= set(texts)


def test_shares_and_rounds_are_rows_of_bars(results):
    write_pair(results)
    spec = bars_spec(time_shares(sweep_of(results, 8e6).groups[0]))
    rows = [(row["row"], row["part"], row["start"], row["end"]) for row in spec["data"]["values"]]
    assert rows[0] == ("ddp, 2 nodes", "compute", 0, pytest.approx(0.99, abs=0.1))
    texts, _ = drawn(spec)
    assert {"ddp, 2 nodes", "local_sgd, 2 nodes", "compute", "communication", "idle"} <= set(texts)


def test_measured_runs_know_computing_and_waiting(results):
    write_run(results, header("ddp"), ramp(10.0), computing=(6.0, 8.0))
    shares = time_shares(group_of(results))
    assert [(bar.part, bar.start, pytest.approx(bar.end)) for bar in shares.bars] == [
        ("compute", 0.0, 70.0),
        ("waiting", 70.0, 100.0),
    ]


def test_bars_of_no_part_of_the_known_are_drawn():
    chart = Bars(
        stem="x", title="t", subtitle="", x_label="ms", rows=("a <b>", "c"), parts=(("x'y\"z", "#000000"),),
        bars=(Bar(row="a <b>", part="x'y\"z", start=1.0, end=2.0, text="1 %"),),
    )  # fmt: skip
    texts, _ = drawn(bars_spec(chart))
    assert {"a <b>", "x'y\"z", "1 %"} <= set(texts)


def test_short_bars_late_in_a_round_keep_their_length():
    bars = tuple(Bar(row="out", part="to", start=812.3 + at / 1e4, end=812.3 + (at + 0.5) / 1e4) for at in range(9))
    chart = Bars(
        stem="x", title="t", subtitle="", x_label="ms", rows=("out",), parts=(("to", "#000000"),), bars=bars
    )
    found = bars_spec(chart)["data"]["values"]
    assert [row["end"] - row["start"] for row in found] == pytest.approx([5e-5] * 9, rel=0.01)


def test_a_map_breaks_its_words_into_lines_and_dashes_tiles_that_were_never_run(results):
    write_pair(results)
    for sharing in ("ist", "local_sgd"):
        write_run(results, header(sharing, nodes=4), ramp(5.0), trace=averaging_trace(4, compute=(0.02,)))
    sweep = sweep_of(results, 8e6, 8e9)
    found = winner_map([sweep], "nodes", "bare")
    first, *others = found.tiles[1]
    tiles = (found.tiles[0], (dataclasses.replace(first, extrapolated=True), *others))
    found = dataclasses.replace(found, tiles=tiles)
    spec = map_spec(found)
    lines = [row["lines"] for row in spec["data"]["values"]][2:]
    assert lines == [["ist or", "local_sgd", "too close*"], ["ist or", "local_sgd", "too close"]]
    assert [row.get("hollow", False) for row in spec["data"]["values"]] == [False, False, True, False]
    texts, dashed = drawn(spec)
    assert {"local_sgd", "ist or", "too close*"} <= set(texts)
    assert len([path for path in dashed if path.attrib["stroke-dasharray"] == "5,4"]) == 1
    assert map_width(found) == 70 + 2 * 84


def test_values_that_no_axis_holds_are_left_out(results):
    events = [evaluation(0, 0.0, 1e300), evaluation(1, 1.0, None), evaluation(2, 2.0, 0.5)]
    write_run(results, header("ist"), events)
    plot = metric_over(group_of(results))
    drawn(panel_specs(plot)[0])


def test_a_curve_of_many_points_is_thinned_and_keeps_its_end(results):
    events = [evaluation(step, float(step), step / 1000) for step in range(1000)]
    write_run(results, header("ist"), events)
    plot = metric_over(group_of(results))
    (line,) = values(panel_specs(plot)[0], "median").values()
    assert len(line) <= 121
    assert line[-1] == (999, 0.999)


def test_colours_are_light_enough_on_a_dark_ground():
    assert on_dark("#000000") != "#000000"
    assert on_dark("#E69F00") == "#E69F00"


def test_both_outputs_draw_the_same_points(results):
    write_plausible(results, "ddp")
    plot = metric_over(group_of(results))
    (series,) = plot.panels[0].series
    (line,) = values(panel_specs(plot)[0], "median").values()
    assert [x for x, _ in line] == pytest.approx(series.x, rel=1e-3)
    assert [y for _, y in line] == pytest.approx(series.y, rel=1e-3)
