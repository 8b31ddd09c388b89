"""Our seconds and speed-ups beside published ones: matched, fitted, counted."""

import dataclasses
import math
import statistics

import pytest
from fake_runs import averaging_trace, evaluation, header, ramp, write_run

from istbench.base.options.suite import Suite
from istbench.report.tables.numbers import number
from istbench.results.load import load_runs
from istbench.studies.reproduce.cells import Overrides, subjects_of
from istbench.studies.reproduce.clocks import FittedPoint, MeasuredClock, ReplayedClock, crossing
from istbench.studies.reproduce.curves import Curves, Finals, SpeedUps
from istbench.studies.reproduce.paper import Cells, Difference, Experiment, Extent
from istbench.studies.reproduce.tables import compared_table

CURVES = "IST (arXiv 1910.02120)"
FITTED = (
    FittedPoint(method="local_sgd", level=0.77, options={"layers": "2"}, method_options={"local_steps": "20"}),
    FittedPoint(method="ddp", level=0.77, options={"layers": "2"}),
)
METHODS = (("ddp", {}), ("local_sgd", {"local_steps": 20}), ("ist", {"local_steps": 60}))


def extent(clock, seeds=1, methods=METHODS):
    suite = Suite(
        workload="speech", methods=methods, nodes=(8,), seeds=tuple(range(seeds)), workload_options={"layers": 2},
        run={"epochs": 30},
    )  # fmt: skip
    measure = Curves(sources=(CURVES, "IST project page"), workload="speech", clock=clock, title="t")
    return Extent(
        cells=(Cells(suite=suite),), measure=measure, differs=(Difference(aspect="width", text="ours is narrow."),)
    )


def trained(results, method, seconds, *, seed=0, best=0.9, nodes=8, size=20_000_000, **changed):
    options = dict(METHODS)[method]
    label = " ".join(f"{name}={value}" for name, value in options.items())
    head = header(method, nodes=nodes, seed=seed, options=label, **changed)
    head["config"] |= {"workload_options": {"layers": 2}, "method_options": {"lr": 0.01, **options}}
    trace = averaging_trace(nodes, local_steps=options.get("local_steps", 1), size=size)
    return write_run(results, head, ramp(seconds, best), trace=trace)


def compared(results, own, overrides=None):
    runs = load_runs(results)[0]
    subjects = subjects_of(own, overrides or Overrides(), runs, ())
    return subjects, own.measure.compare(subjects)


def rows_of(found):
    return {(row.method, row.what): row for row in found.rows}


def test_measured_seconds_stand_beside_the_published_ones_with_ratio_and_seeds(results):
    for seed, seconds in ((0, 1000.0), (1, 2000.0), (2, 3000.0)):
        trained(results, "ddp", seconds, seed=seed)
    _, found = compared(results, extent(MeasuredClock(), seeds=3))
    row = rows_of(found)["ddp", "s to accuracy 0.77"]
    # The ramp reaches 0.77 at (0.77 - 0.09) / (0.9 - 0.09) of the way from a tenth of its seconds to all.
    ours = 2000 * (0.1 + 0.9 * (0.77 - 0.09) / (0.9 - 0.09))
    assert row.published == 3884
    assert row.ours.median == pytest.approx(ours)
    assert row.ratio == pytest.approx(ours / 3884)
    assert (row.reached, row.trained, row.planned) == (3, 3, 3)
    assert row.spread_text == f"{ours / 2:.0f}–{ours * 1.5:.0f}"


def test_a_miss_counts_as_a_miss_and_untrained_cells_are_said(results):
    trained(results, "ddp", 1000.0)
    trained(results, "ddp", 1000.0, seed=1, best=0.65)
    trained(results, "ist", 1000.0, best=0.6)
    _, found = compared(results, extent(MeasuredClock(), seeds=3))
    rows = rows_of(found)
    late = rows["ddp", "s to accuracy 0.77"]
    assert late.ours_text == "reached by 1 of 2 seeds, best 0.775"
    assert (late.reached, late.trained, late.planned, late.ratio) == (1, 2, 3, None)
    missed = rows["ist local_steps=60", "s to accuracy 0.77"]
    assert missed.ours_text == "not reached, best 0.600"
    assert math.isinf(missed.ours.median)
    none = rows["local_sgd local_steps=20", "s to accuracy 0.77"]
    assert (none.ours, none.ours_text, none.trained) == (None, "not trained", 0)


def test_errors_are_named_by_method(results):
    """Twice as slow by one method and twice as fast by another are no good median together."""
    trained(results, "ddp", 2 * 3884.0)
    trained(results, "local_sgd", 1621.0 / 2)
    _, found = compared(results, extent(MeasuredClock()))
    (line,) = (note for note in found.notes if "in the median" in note)
    rows = [row for row in found.rows if row.what.startswith("s to") and row.ratio is not None]
    for method in ("ddp", "local_sgd"):
        ratios = [row.ratio for row in rows if row.method.split()[0] == method]
        assert f"{method} {number(statistics.median(ratios))} ({len(ratios)} of " in line
    slow, fast = (line.index(f"{name} ") for name in ("ddp", "local_sgd"))
    assert slow < fast < line.index("our speed-up over ddp, over the published one: local_sgd")


def test_two_points_fix_the_cluster_and_every_other_one_is_predicted(results):
    for method in dict(METHODS):
        trained(results, method, 9.0, nodes=2)
    _, found = compared(results, extent(ReplayedClock(cluster="m5.2xlarge", fitted=FITTED)), Overrides(nodes=2))
    rows = rows_of(found)
    for method, seconds in (("ddp", 3884), ("local_sgd local_steps=20", 1621)):
        row = rows[method, "s to accuracy 0.77"]
        assert row.ours.median == pytest.approx(seconds, rel=1e-3)
        assert row.ours_text.endswith("(fitted)")
    predicted = rows["ist local_steps=60", "s to accuracy 0.77"]
    # It computes as local_sgd does, and exchanges a third as often.
    assert 0 < predicted.ours.median < 1621
    assert any("fix m5.2xlarge at" in note for note in found.notes)


def test_without_the_points_that_fix_it_the_clock_says_so(results):
    trained(results, "ist", 9.0)
    _, found = compared(results, extent(ReplayedClock(cluster="m5.2xlarge", fitted=FITTED)))
    assert found.cautions[0].startswith("Not fitted: no run of ours reaches layers=2 local_sgd local_steps=20")
    assert rows_of(found)["ist local_steps=60", "s to accuracy 0.77"].ours is not None


def test_the_clock_is_fitted_to_the_first_seed_with_a_readable_trace(results):
    for method in dict(METHODS):
        for seed in (0, 1):
            trained(results, method, 9.0, nodes=2, seed=seed)
    damaged = next(
        path for path in (results / "runs").iterdir() if "-ddp-" in path.name and path.name.endswith("s0")
    )
    (damaged / "trace.npz").write_bytes(b"cut short")
    own = extent(ReplayedClock(cluster="m5.2xlarge", fitted=FITTED), seeds=2)
    _, found = compared(results, own, Overrides(nodes=2))
    (note,) = (note for note in found.notes if "fix m5.2xlarge at" in note)
    assert "local_sgd local_steps=20 at 0.77 (our seed 0) and layers=2 ddp at 0.77 (our seed 1)" in note
    assert rows_of(found)["ddp", "s to accuracy 0.77"].trained == 1
    (problem,) = found.problems
    assert "cut short" in problem


def test_points_that_no_cluster_gives_are_not_fitted(results):
    for method in dict(METHODS):
        trained(results, method, 9.0, nodes=2, size=8)  # the published ddp is slower by its messages
    _, found = compared(results, extent(ReplayedClock(cluster="m5.2xlarge", fitted=FITTED)), Overrides(nodes=2))
    assert found.cautions[0].startswith("Not fitted: no speed and bandwidth give the seconds of both points")
    assert not any("fitted" in row.ours_text for row in found.rows)


def test_a_time_before_the_first_evaluation_is_marked(results):
    trained(results, "ddp", 1000.0)
    trained(results, "ist", 100.0)
    early = next(path for path in (results / "runs").iterdir() if "-ist-" in path.name)
    events = [line for line in (early / "events.jsonl").read_text().splitlines() if '"step":10,' not in line]
    (early / "events.jsonl").write_text("\n".join([*events, ""]))
    own = extent(MeasuredClock())
    subjects, found = compared(results, own)
    table = compared_table(Experiment(name="speech", title="Speech", at={"laptop": own}), "laptop", subjects, found)
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    marked = {row["method"].text for row in rows if row["ours"].text.startswith("~")}
    assert marked == {"ist local_steps=60"}
    assert any(
        row["figure"].text == "times as fast as ddp to accuracy 0.77" for row in rows if "~" in row["ours"].text
    )
    assert any(line.startswith("~: a seed reached it before its first evaluation") for line in table.footer)


def test_speed_ups_of_a_page_are_paired_by_seed(results):
    for seed, (base, fast) in enumerate(((1000.0, 100.0), (900.0, 180.0))):
        trained(results, "ddp", base, seed=seed)
        trained(results, "ist", fast, seed=seed)
    _, found = compared(results, extent(MeasuredClock(), seeds=2))
    row = rows_of(found)["ist local_steps=60", "times as fast as ddp to accuracy 0.77"]
    assert row.published == 10.6
    assert row.ours.median == pytest.approx(7.5)
    assert (row.reached, row.planned) == (2, 2)
    over_none = rows_of(found)["ist local_steps=60", "times as fast as local_sgd local_steps=20 to accuracy 0.77"]
    assert (over_none.ours, over_none.ours_text) == (None, "not trained")


@pytest.mark.parametrize(
    ("missed", "text", "spread"), [(1, "5.00", "0–10.0"), (2, "reached by 1 of 3 seeds", "0–5.00")]
)
def test_a_seed_that_missed_has_no_speed_up(results, missed, text, spread):
    for seed, fast in enumerate((200.0, 100.0, 100.0)):
        trained(results, "ddp", 1000.0, seed=seed)
        trained(results, "ist", fast, seed=seed, **({"best": 0.7} if seed > 2 - missed else {}))
    _, found = compared(results, extent(MeasuredClock(), seeds=3))
    row = rows_of(found)["ist local_steps=60", "times as fast as ddp to accuracy 0.77"]
    assert (row.reached, row.trained, row.spread_text) == (3 - missed, 3, spread)
    assert row.ours.reached == 3 - missed
    assert row.ours_text.startswith(text)


def test_curves_give_a_speed_up_over_ddp_at_each_level(results):
    trained(results, "ddp", 1000.0)
    _, found = compared(results, extent(MeasuredClock()))
    assert found.tables == ()  # without a second method there is nothing to compare
    trained(results, "ist", 100.0)
    _, found = compared(results, extent(MeasuredClock()))
    (table,) = found.tables
    keys = [column.key for column in table.columns]
    rows = [{key: entry.text for key, entry in zip(keys, row, strict=True)} for row in table.rows]
    assert [row["method"] for row in rows] == ["local_sgd local_steps=20"] * 4 + ["ist local_steps=60"] * 4
    last = rows[-1]
    assert last["figure"] == "times as fast as ddp to accuracy 0.77"
    assert (last["published"], last["ours"]) == (f"{3884 / 385:.1f}", "10.0")
    assert last["ours_over_published"] == f"{10 / (3884 / 385):.3f}"
    assert rows[0]["ours"] == "not trained"


def test_other_nodes_are_a_difference_of_their_rows(results):
    trained(results, "ddp", 1000.0, nodes=4)
    _, found = compared(results, extent(MeasuredClock()), Overrides(nodes=4))
    row = rows_of(found)["ddp", "s to accuracy 0.77"]
    assert (row.nodes, row.aspects) == (4, ("nodes",))
    assert any("ours 4 and theirs 8" in one.text for one in found.differences)


def test_the_table_names_data_ratio_and_differences(results):
    trained(results, "ddp", 1000.0)
    own = extent(MeasuredClock(), seeds=2)
    subjects, found = compared(results, own)
    experiment = Experiment(name="speech", title="Speech", at={"laptop": own})
    table = compared_table(experiment, "laptop", subjects, found)
    keys = [column.key for column in table.columns]
    assert keys == [
        "network",
        "method",
        "nodes",
        "figure",
        "published",
        "ours",
        "ours_over_published",
        "seeds",
        "differs",
    ]
    first = dict(zip(keys, table.rows[0], strict=True))
    assert first["differs"].text == "data, width, machine"
    assert first["seeds"].text == "1 of 2, 1 not trained"
    assert any(line.startswith("Data of our runs: SYNTHETIC data") for line in table.footer)
    assert any(line.startswith("Partial: 5 of 6 cells") for line in table.footer)
    assert "Differs, width: ours is narrow." in table.footer


@pytest.mark.parametrize(
    ("source", "differs"),
    [
        ({"kind": "synthetic"}, "data, width, machine"),
        ({"kind": "words", "name": "words in x"}, "data, width, machine"),
        ({"kind": "speech_commands", "whole": 2000}, "data, width, machine"),
        ({"kind": "speech_commands", "whole": 1100}, "width, machine"),
    ],
)
def test_only_runs_on_the_complete_data_set_do_not_differ_in_data(results, source, differs):
    trained(results, "ddp", 1000.0, data_source={"fingerprint": "ab", "train": 1000, "test": 100, **source})
    made_up = Difference(aspect="data", text="made-up clips.", made_up=True)
    own = dataclasses.replace(extent(MeasuredClock()), differs=(made_up, *extent(MeasuredClock()).differs))
    subjects, found = compared(results, own)
    table = compared_table(Experiment(name="speech", title="Speech", at={"laptop": own}), "laptop", subjects, found)
    place = [column.key for column in table.columns].index("differs")
    assert table.rows[0][place].text == differs
    assert ("Differs, data: made-up clips." in table.footer) == (source["kind"] == "synthetic")


def test_finals_stand_beside_every_row_of_their_method(results):
    trained(results, "ist", 9.0, best=0.8)
    suite = extent(MeasuredClock()).cells[0]
    own = Extent(cells=(suite,), measure=Finals(sources=("IST (arXiv 1910.02120) table 3",)))
    _, found = compared(results, own)
    row = rows_of(found)["ist local_steps=60", "final accuracy"]
    assert (row.published, row.ours.median) == (0.8153, 0.8)
    assert row.ratio == pytest.approx(0.8 / 0.8153)
    assert len(found.rows) == 3  # of three layers there are no cells


def test_a_speed_up_without_a_level_is_to_a_share_of_the_best(results):
    for method, seconds, best in (("model_parallel", 90.0, 0.8), ("dslide", 10.0, 0.8)):
        head = header(method, nodes=1, workload="amazon670k", options="lr=0.01")
        head["config"] |= {"workload_options": {"hidden": 128}}
        events = [evaluation(0, 0.0, 0.0), evaluation(10, seconds, best)]
        for event in events:
            event.metrics["precision@1"] = event.metrics.pop("accuracy")
        write_run(results, {**head, "metric": "precision@1", "budget": "3 epochs"}, events)
    suite = Suite(
        workload="amazon670k", methods=(("model_parallel", {"lr": 0.01}), ("dslide", {"lr": 0.01})), nodes=(1,),
        seeds=(0,), workload_options={"hidden": 128}, run={"epochs": 3},
    )  # fmt: skip
    measure = SpeedUps(source="SLIDE (arXiv 1903.03129)", clock=MeasuredClock())
    _, found = compared(results, Extent(cells=(Cells(suite=suite),), measure=measure))
    assert [row.published for row in found.rows] == [8.0, 2.7]
    assert found.rows[0].what == "times as fast as model_parallel lr=0.01 to precision@1 0.760"
    assert found.rows[0].ours.median == pytest.approx(9.0)


@pytest.mark.parametrize("exponent", [-1.0, -0.2])
def test_a_crossing_is_found_to_four_digits(exponent):
    found = crossing(lambda value: exponent * math.log(value / 37.5), 0.01, 1e5)
    assert found == pytest.approx(37.5, rel=1e-3)


def test_a_crossing_beyond_the_ends_is_an_end():
    assert crossing(lambda value: 1.0, 1.0, 10.0) == pytest.approx(10.0)
    assert crossing(lambda value: -1.0, 1.0, 10.0) == 1.0
