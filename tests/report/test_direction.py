"""A metric that falls is one that rises, upside down: every crossing, best, table and speed-up is the same."""

import json
import math
import shutil
from pathlib import Path

import msgspec
import pytest
from fake_clusters import BARE
from fake_runs import averaging_trace, header, ramp, write_plausible, write_run
from garbage import quick
from hypothesis import given
from hypothesis import strategies as st

from istbench.base.decode import decode_own, encode_own
from istbench.report.baseline import pair
from istbench.report.groups import group_runs
from istbench.report.output.formats import table_json
from istbench.report.output.pictures import draw_plots
from istbench.report.plots.over_time import metric_over
from istbench.report.report import build_report, build_report_on_clusters
from istbench.report.tables.comparison import comparison
from istbench.report.tables.summary import run_summary
from istbench.results.curves import Curve, time_to_target
from istbench.results.events import Evaluation
from istbench.results.header import Header
from istbench.results.load import Run, load_runs
from istbench.results.store import RunDirectory

REAL = {"kind": "words", "fingerprint": "ab" * 32, "train": 200, "test": 0}
LEVELS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3).map(float)
VALUES = st.lists(st.none() | LEVELS, min_size=1, max_size=5)


@st.composite
def recorded(draw):
    """The plain headers and events of a few runs by two methods, of a metric that rises."""
    metric = {"metric": "score", "lower_is_better": False, "data": "words", "data_source": REAL}
    targets, error = draw(st.lists(LEVELS, max_size=3)), draw(st.none() | st.floats(0, 2))
    found = []
    for method in ("ddp", "ist"):
        for seed in range(draw(st.integers(1, 2)) if found else draw(st.sampled_from([1, 2, 6]))):
            head = header(method, seed=seed, **metric, targets=targets)
            head["config"]["target"] = draw(st.none() | LEVELS) if not found else found[0][0]["config"]["target"]
            rates = draw(st.lists(st.floats(0.1, 9), min_size=5, max_size=5))
            values = draw(VALUES)
            found.append(
                (head, [event(place, value, sum(rates[:place]), error) for place, value in enumerate(values)])
            )
    return found


def event(place, value, seconds, error):
    return Evaluation(
        step=10 * place, samples=20 * place, train_s=seconds if place else 0.0, wall_s=seconds, evaluate_s=0.1,
        assemble_s=0.1, bytes_sent_per_node=place, bytes_received_per_node=place, train_loss=None,
        metrics={"score": value, "score_standard_error": error},
    )  # fmt: skip


def upside_down(head, events):
    """The same run with every value negated, and the direction with it."""
    name = head["metric"]
    config = {**head["config"], "target": negated(head["config"]["target"])}
    changed = {"lower_is_better": not head["lower_is_better"], "targets": [-level for level in head["targets"]]}
    return (
        {**head, **changed, "config": config},
        [
            msgspec.structs.replace(event, metrics={**event.metrics, name: negated(event.metrics[name])})
            for event in events
        ],
    )


def negated(value):
    return None if value is None else -value


def runs_of(recorded):
    """Runs without a file."""
    found = []
    for plain, events in recorded:
        head = msgspec.convert({"result": None, **plain}, Header, dec_hook=decode_own)
        curve = Curve.from_events(events, head.own_metric)
        found.append(Run(header=head, curve=curve, directory=RunDirectory(Path(head.cell))))
    return found


def negated_value(key, value):
    """What an entry's value for programs is upside down."""
    if key == "speed_up" and isinstance(value, dict):
        return {**value, "to": -value["to"]}
    if key.startswith("final_"):
        return {"median": negated(value["median"]), "low": negated(value["high"]), "high": negated(value["low"])}
    return {**value, "level": -value["level"]} if isinstance(value, dict) and "level" in value else value


def unsigned(text):
    return text.replace("-", "")


def assert_mirrored(table, other):
    assert unsigned(other.title) == unsigned(table.title)
    assert [unsigned(column.key) for column in other.columns] == [unsigned(column.key) for column in table.columns]
    for row, turned in zip(table.rows, other.rows, strict=True):
        for column, entry, twin in zip(table.columns, row, turned, strict=True):
            assert twin.value == negated_value(column.key, entry.value), column.key
            if not column.key.startswith("final_"):  # its interval is the other way round
                assert unsigned(twin.text) == unsigned(entry.text)
    plain = [line for line in other.footer if not line.startswith("Metric: ")]
    assert len(plain) == len(other.footer) - 1
    assert list(map(unsigned, plain)) == list(map(unsigned, table.footer))


@quick(600)
@given(recorded())
def test_a_negated_curve_of_the_other_direction_gives_the_same_tables(found):
    rising, falling = runs_of(found), runs_of([upside_down(*each) for each in found])
    for up, down in zip(rising, falling, strict=True):
        assert down.curve.best() == negated(up.curve.best())
        assert down.targets == tuple(-level for level in up.targets)
        for level in up.targets:
            there, twin = time_to_target(up.curve, level), time_to_target(down.curve, -level)
            assert (there is None) == (twin is None)
            if there is not None:
                assert (twin.step, twin.seconds, twin.from_start) == (there.step, there.seconds, there.from_start)
                assert math.isfinite(there.seconds)
    (group,), (other,) = group_runs(rising), group_runs(falling)
    assert [(-target.level, target.share) for target in group.targets] == [
        (target.level, target.share) for target in other.targets
    ]
    assert_mirrored(comparison(group), comparison(other))
    for each in (group, other):
        plot, _ = metric_over(each), json.dumps(table_json(comparison(each)), allow_nan=False)
        assert all(map(math.isfinite, (y for panel in plot.panels for series in panel.series for y in series.y)))
    for row, twin in zip(group.contenders, other.contenders, strict=True):
        one, two = pair(group, "ddp", row), pair(other, "ddp", twin)
        assert (one is None) == (two is None)
        assert one is None or one.found == two.found


def test_files_replays_pictures_and_summaries_are_the_same_upside_down(tmp_path):
    up, down = tmp_path / "up", tmp_path / "down"
    for method in ("ddp", "ist"):
        for seed in range(2):
            write_plausible(up, method, seed=seed, traced=True, lower_is_better=False)
    for run in load_runs(up)[0]:
        head = {**msgspec.to_builtins(run.header, enc_hook=encode_own)}
        del head["result"]
        turned = write_run(down, *upside_down(head, run.curve.evaluations))
        shutil.copy(run.directory.trace, turned.trace)
    clusters = {"bare": [BARE.with_bandwidth(1e6), BARE]}
    for one, other in (
        (build_report(up), build_report(down)),
        (build_report_on_clusters(up, clusters), build_report_on_clusters(down, clusters)),
    ):
        assert len(one.tables) == len(other.tables) > 0
        for table, twin in zip(one.tables, other.tables, strict=True):
            if "seconds to accuracy" in table.title:
                assert_mirrored(table, twin)
            elif "methods cross" in table.title:
                assert [row[0] for row in twin.rows] == [row[0] for row in table.rows]
            else:
                assert twin.rows == table.rows
        assert len(one.plots) == len(other.plots) > 0
        for plot, twin in zip(one.plots, other.plots, strict=True):
            sign = -1 if plot.kind == "lines" else 1
            for panel, turned in zip(plot.panels, twin.panels, strict=True):
                for series, mirrored in zip(panel.series, turned.series, strict=True):
                    assert (mirrored.x, mirrored.missed) == (series.x, series.missed)
                    assert mirrored.y == tuple(sign * y for y in series.y)
    for run, twin in zip(load_runs(up)[0], load_runs(down)[0], strict=True):
        rows, turned = (
            [unsigned(entry.text) for row in run_summary(each).rows for entry in row] for each in (run, twin)
        )
        assert rows == turned


RECORDED = {"data": "words", "data_source": {**REAL, "test": 100}, "metric": "loss", "lower_is_better": True}


def falling(seconds, start, end, error=None):
    """Events of a run whose loss falls from `start` to `end` in a straight line."""
    extra = {} if error is None else {"loss_standard_error": error}
    return [
        msgspec.structs.replace(event, metrics={"loss": value, **extra})
        for event, value in zip(ramp(seconds), (start, start + (end - start) / 10, end), strict=True)
    ]


def test_a_loss_has_its_times_speed_ups_and_unit_in_the_tables(results):
    head = {**RECORDED, "unit": "nats a token", "targets": [2.5, 2.0]}
    write_run(results, header("ddp", **head), falling(20.0, 4.0, 1.9))
    write_run(results, header("ist", **head), falling(10.0, 4.0, 2.1))
    (group,) = group_runs(load_runs(results)[0])
    assert [target.level for target in group.targets] == [2.5, 2.0]
    table = comparison(group)
    entries = {
        column.key: (entry, column.title) for column, entry in zip(table.columns, table.rows[1], strict=True)
    }
    assert entries["train_s_to_2.5"][0].value["median"] == pytest.approx(10 * 1.5 / 1.9)
    assert entries["train_s_to_2"][0].text == "not reached in 10.0"
    assert entries["speed_up"][0].text == "1.81× to 2.5"
    assert entries["final_loss"][0].text == "2.100"
    assert entries["final_loss"][1] == "final loss (nats a token)"
    assert "Metric: loss (nats a token), lower is better." in table.footer
    assert (table.context["lower_is_better"], table.context["metric_unit"]) == (True, "nats a token")
    plot = metric_over(group)
    assert (plot.y_label, plot.y_scale) == ("test loss (nats a token)", "linear")
    assert "train seconds to loss on" in table.title


def test_without_levels_a_loss_has_multiples_of_the_best_as_targets(results):
    write_run(results, header("ddp", **RECORDED, targets=[]), falling(20.0, 4.0, 2.0))
    write_run(results, header("ist", **RECORDED, targets=[]), falling(10.0, 4.0, 2.15))
    (group,) = group_runs(load_runs(results)[0])
    assert [target.level for target in group.targets] == pytest.approx([2.2, 2.1, 2.04])
    assert group.targets[0].text == "110 % of best (2.200)"
    table = comparison(group)
    assert [column.key for column in table.columns][3:5] == ["train_s_to_1.1_of_best", "train_s_to_1.05_of_best"]
    assert "Targets: multiples of the best final loss among these runs, 2.000." in "\n".join(table.footer)
    ist = {column.key: entry for column, entry in zip(table.columns, table.rows[1], strict=True)}
    assert ist["train_s_to_1.1_of_best"].value["level"] == pytest.approx(2.2)
    assert ist["train_s_to_1.05_of_best"].text == "not reached in 10.0"
    assert ist["speed_up"].text.endswith("× to 110 % of best")


def test_a_loss_has_no_standard_error_but_a_recorded_one(results):
    close = {**RECORDED, "targets": [0.5, 0.49]}
    write_run(results, header("ddp", **close), falling(20.0, 0.9, 0.4))
    (group,) = group_runs(load_runs(results)[0])
    assert group.close_targets == []  # a loss from 0 to 1 is no share
    write_run(results, header("ist", **close), falling(20.0, 0.9, 0.4, error=0.02))
    (group,) = group_runs(load_runs(results)[0])
    table = comparison(group)
    assert (
        "Careful: targets closer than two standard errors: 0.5 and 0.49. The runs recorded a standard error of up "
        "to 0.02 for an evaluation. Differences between times to these targets may be chance; compare the seconds "
        "to the end or the samples per second."
    ) in table.footer
    assert "train_s_to_the_end" in [column.key for column in table.columns]


def test_a_loss_that_is_no_number_is_the_worst(results):
    write_run(results, header("ist", **RECORDED, targets=[2.0]), falling(9.0, 4.0, 1.9))
    for seed in (1, 2):
        write_run(results, header("ist", seed=seed, **RECORDED, targets=[2.0]), falling(9.0, 4.0, math.nan))
    (group,) = group_runs(load_runs(results)[0])
    table = comparison(group)
    entries = {column.key: entry for column, entry in zip(table.columns, table.rows[0], strict=True)}
    assert entries["final_loss"].text == "diverged [1.900–diverged]"
    assert entries["final_loss"].value["median"] is None
    assert entries["train_s_to_2"].text == "> 9.00 1/3"


def test_a_metric_far_above_its_best_has_a_logarithmic_axis(results):
    write_run(results, header("ddp", **RECORDED, targets=[30.0]), falling(9.0, 50_000.0, 25.0))
    (group,) = group_runs(load_runs(results)[0])
    assert metric_over(group).y_scale == "log"
    write_run(results, header("ist", **RECORDED, targets=[-1.0, 30.0]), falling(9.0, 50_000.0, 25.0))
    (group,) = group_runs(load_runs(results)[0])
    assert metric_over(group).y_scale == "linear"  # nothing at or below zero is on a logarithmic axis


def test_a_picture_of_a_loss_is_drawn(results):
    write_run(results, header("ddp", **RECORDED, targets=[30.0, 26.0, 25.9]), falling(9.0, 50_000.0, 25.0))
    write_run(results, header("ist", **RECORDED, unit="\x00\x1b nats", targets=[]), falling(9.0, 4.0, 1.9))
    write_run(results, header("p3", **RECORDED, unit="far", targets=[0.0]), falling(9.0, 1.7e308, -1.7e308))
    report = build_report(results)
    assert len(draw_plots(report.plots, results / "report")) == 2 * len(report.plots)


def test_a_trace_belongs_to_no_metric(results):
    write_run(results, header("ddp", **RECORDED, targets=[2.0]), falling(9.0, 4.0, 1.9), trace=averaging_trace(2))
    table = build_report_on_clusters(results, {"bare": [BARE]}).tables[0]
    entries = {column.key: entry for column, entry in zip(table.columns, table.rows[0], strict=True)}
    assert entries["cluster_s_to_2"].value["median"] == pytest.approx(101 * 2 / 2.1)
