"""The page of the study of `deal`, `coverage` and `moving`: its sentences, and the runs that it refuses."""

import csv
import dataclasses
import importlib
import math
import sys
from pathlib import Path

import msgspec
import pytest
from fake_runs import averaging_trace, header, ramp, write_run

from istbench.base.errors import diverged
from istbench.cluster.speed import StepWork

LEVEL = 0.6
SCRIPTS = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.fixture
def dealing(monkeypatch):
    """The program."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("dealing")


@pytest.fixture
def of_rows(dealing):
    """The module of its rows."""
    return importlib.import_module("dealing_rows")


@pytest.fixture
def of_findings(dealing):
    """The module of its sentences."""
    return importlib.import_module("dealing_findings")


@pytest.fixture
def row(of_rows):
    """Makes rows. seconds: those of the seeds to `LEVEL` at all bandwidths, or a function of the bandwidth."""

    def make(method="ist", seconds=(10.0,), *, finals=(0.74,), megabytes=1.0, operations=1.0, error=0.0, **options):
        usual = {"nodes": 2, "deal": "late", "coverage": 1, "moving": 1, "warmup_rounds": 0, "widen": 1}
        own = seconds if callable(seconds) else lambda bits: seconds
        return of_rows.Row(
            cell=of_rows.Cell(method=method, **{**usual, **options}),
            finals=tuple(sorted(finals)),
            megabytes=megabytes,
            operations=operations,
            step_ms=1.0,
            seconds={(LEVEL, bits): own(bits) for bits in of_rows.SWEEP},
            error=error,
        )

    return make


@pytest.fixture
def lines(of_findings):
    """The findings of rows."""
    return lambda *rows: list(of_findings.findings(rows, [LEVEL]))


@pytest.fixture
def first(of_findings):
    """The finding about the first to `LEVEL`, without its beginning."""

    def found(*rows):
        *_, last = of_findings.findings(rows, [LEVEL])
        assert last.startswith("2 nodes, to 0.6: ")
        return last.removeprefix("2 nodes, to 0.6: ")

    return found


@pytest.fixture
def baselines(row):
    """`local_sgd` and `ddp`, heavier than a form of `ist`."""

    def make(local_sgd=(20.0,), ddp=(40.0,), final=0.745):
        return (
            row("local_sgd", local_sgd, finals=(final,), megabytes=2.0, operations=2.0),
            row("ddp", ddp, finals=(0.78,), megabytes=9.0, operations=2.0),
        )

    return make


def test_a_gap_of_exactly_one_point_is_near_enough(lines, row, baselines):
    assert 0.745 - 0.735 > 0.01  # a difference of floats, which only rounding mends
    wanted, near, *_ = lines(row(finals=(0.735,)), *baselines())
    beside = "`ist deal=late` 0.735 (1 seed, -1.00 points, 0.50 of the bytes, 0.50 of the arithmetic)"
    assert near == (
        f"2 nodes, at most 1 point behind and with fewer bytes and less arithmetic than `local_sgd`: {beside}."
    )
    assert wanted == (
        "2 nodes, near enough, lighter and first: `ist deal=late` (1 seed; to 0.6 from 10 Mbit/s to 10 Gbit/s)."
    )
    wanted, near, *_ = lines(row(finals=(0.7349,)), *baselines())
    assert near.endswith(": none.")
    assert "no form. The nearest is `ist deal=late` 0.735 (1 seed, -1.01 points" in wanted


def test_nothing_is_named_first_without_both_baselines(lines, row, baselines):
    local_sgd, ddp = baselines()
    for missing, there in (("ddp", local_sgd), ("local_sgd", ddp)):
        found = lines(row(), there)
        assert found[0] == f"2 nodes: `{missing}` has not finished, so nothing is named first."
        assert not any("is first" in line for line in found)
    untraced = dataclasses.replace(ddp, seconds=dict.fromkeys(ddp.seconds, ()))
    assert lines(row(), local_sgd, untraced)[0].startswith(
        "2 nodes: `ddp` has no replayed seconds that compare, so "
    )
    assert lines(local_sgd, ddp) == ["2 nodes: `ist` has not finished, so nothing is named first."]


def test_a_level_that_one_kind_alone_reaches(first, row, baselines):
    missed = (math.inf,)
    sooner, later = row(seconds=(10.0,)), row(seconds=(20.0,), coverage=2)
    assert first(sooner, later, *baselines(missed, missed)) == (
        "`ist deal=late` (1 seed) is first from 10 Mbit/s to 10 Gbit/s, and no baseline reaches it."
    )
    assert first(row(seconds=missed), *baselines()) == (
        "`local_sgd` (1 seed) is first from 10 Mbit/s to 10 Gbit/s, and no form of `ist` reaches it; "
        "`ist` is clearly first at no bandwidth."
    )
    assert first(row(seconds=missed), *baselines(missed, missed)) == "no run reaches it."


def test_a_row_of_which_two_of_three_seeds_missed_does_not_compete(first, row, baselines):
    two_missed, one_missed = (5.0, math.inf, math.inf), (5.0, 6.0, math.inf)
    assert first(row(seconds=two_missed), *baselines()).startswith("`local_sgd` (1 seed) is first from")
    assert first(row(seconds=one_missed), *baselines()).startswith(
        "too close to call from 10 Mbit/s to 10 Gbit/s: "
    )


def test_overlapping_ranges_are_too_close_to_call(first, row, baselines):
    close = "too close to call from 10 Mbit/s to 10 Gbit/s: `ist deal=late` and `local_sgd`"
    assert close in first(row(seconds=(9.0, 10.0, 20.0)), *baselines((19.0, 21.0, 22.0)))
    assert first(row(seconds=(10.0,)), *baselines((12.0,))) == (
        "`ist deal=late` (1 seed) is first from 10 Mbit/s to 10 Gbit/s, 1.20 times as fast as `local_sgd`."
    )
    # One seed has the error of its replays for a range: 10 s and 12 s are 20 % apart.
    assert close in first(row(seconds=(10.0,), error=0.21), *baselines((12.0,)))


def test_neighbouring_bandwidths_that_are_too_close_share_a_sentence(first, row, baselines):
    form = row(seconds=lambda bits: (10.0,) if bits < 1e9 else (10.2,), error=0.5)
    assert first(form, *baselines((10.1,), (90.0,))).startswith("too close to call from 10 Mbit/s to 10 Gbit/s: ")


def test_forms_of_ist_that_are_close_to_each_other_still_beat_a_baseline(first, row, baselines):
    seconds = first(row(seconds=(10.0, 11.0)), row(seconds=(10.6, 12.0), moving=0.25), *baselines())
    assert seconds == (
        "`ist deal=late` (1 seed) is first from 10 Mbit/s to 10 Gbit/s, 1.90 times as fast as `local_sgd` "
        "(too close to call between it and `ist deal=late moving=0.25`)."
    )


def test_a_first_of_one_seed_or_of_fewer_seeds_than_its_rival_says_so(first, row, baselines):
    local_sgd, ddp = baselines((20.0, 21.0, 22.0))
    two, three = (dataclasses.replace(row(), finals=(0.74,) * seeds) for seeds in (2, 3))
    of_three = dataclasses.replace(local_sgd, finals=(0.74, 0.745, 0.75))
    assert first(row(), local_sgd, ddp).startswith("`ist deal=late` (1 seed) is first from")
    assert first(two, local_sgd, ddp).startswith("`ist deal=late` is first from")
    assert first(two, of_three, ddp).startswith("`ist deal=late` (2 seeds) is first from")
    assert first(three, of_three, ddp).startswith("`ist deal=late` is first from")


def test_the_verdict_names_bandwidths_and_the_first_names_rivals(lines, first, row, baselines):
    rows = (row(seconds=lambda bits: (10.0,) if bits < 1e9 else (30.0,)), *baselines())
    assert lines(*rows)[0].endswith(
        "lighter and first: `ist deal=late` (1 seed; to 0.6 from 10 Mbit/s to 500 Mbit/s)."
    )
    assert first(*rows) == (
        "`ist deal=late` (1 seed) is first from 10 Mbit/s to 500 Mbit/s, 2.00 times as fast as `local_sgd`; "
        "`local_sgd` (1 seed) is first from 1 Gbit/s to 10 Gbit/s, 1.50 times as fast as `ist deal=late`."
    )


def test_the_verdict_gives_the_reason_where_no_form_is_wanted(lines, row, baselines):
    def verdict(*forms):
        return lines(*forms, *baselines())[0].removeprefix("2 nodes, near enough, lighter and first: ")

    assert verdict(row(megabytes=3.0)).startswith("no form. Near enough, but not lighter: `ist deal=late` ")
    assert verdict(row(seconds=(50.0,))) == (
        "no form. Near enough and lighter is `ist deal=late`, but to 0.6 it is clearly sooner than `local_sgd` and "
        "`ddp` at no bandwidth."
    )
    # One that is near enough and one that is first are not one that is both.
    assert verdict(row(seconds=(50.0,)), row(finals=(0.65,), deal="all")).startswith("no form. ")
    assert verdict(row(warmup_rounds=10), row(finals=(0.65,), deal="all")).startswith(
        "unknown. Near enough and lighter is "
    )


def test_warmup_rounds_are_in_no_comparison_of_seconds(dealing, of_rows, first, row, baselines):
    warm = row(seconds=(1.0,), warmup_rounds=10)
    assert "warmup" not in first(warm, row(), *baselines())
    assert dealing.seconds_entry(warm, (LEVEL, 1e9)).text == "≥ 1.00"
    # A tenth of the steps is of local_sgd, with an arithmetic of 2; the others are of the subnet, with 1.
    tenth = dataclasses.replace(warm, warming=0.1)
    assert of_rows.with_warmup(tenth, [tenth, *baselines()]).operations == pytest.approx(1.1)
    assert of_rows.with_warmup(tenth, [tenth]).operations is None


def test_unknown_arithmetic_is_not_less(lines, row, baselines):
    wanted, near, *_ = lines(row(operations=None), *baselines())
    assert near.endswith(": none.")
    assert (
        "not lighter: `ist deal=late` 0.740 (1 seed, -0.50 points, 0.50 of the bytes, unknown arithmetic)" in wanted
    )


def test_another_method_has_its_own_colour_in_the_legend(dealing, row):
    handles = importlib.import_module("dealing_picture").handles_of(
        [row("diloco"), row("ist"), row("streaming_ist"), row("ddp")]
    )
    colours = {handle.get_label(): handle.get_color() for handle in handles}
    assert (
        len({colours[name] for name in ("ddp, more MB", "diloco", "ist, late layers dealt", "streaming_ist")}) == 4
    )


def head_of(method, seed=0, *, workload_options=(), fingerprint="ab" * 32, **options):
    own = {"lr": 0.1, **({} if method == "ddp" else {"local_steps": 5}), **options}
    told = " ".join(f"{name}={value}" for name, value in own.items())
    head = header(method, seed=seed, workload="cifar10", options=told)
    head["config"] |= {"method_options": own, "workload_options": dict(workload_options)}
    head["data_source"] = {**head["data_source"], "fingerprint": fingerprint, "kind": "images", "name": "CIFAR-10"}
    return head


def trace_of(method, operations=1e9):
    trace = averaging_trace(local_steps=1 if method == "ddp" else 5)
    work = StepWork(operations=operations, bytes=1.0)
    return dataclasses.replace(trace, meta=msgspec.structs.replace(trace.meta, work=work))


def write(results, method, seed=0, *, best=0.9, traced=True, end=(), **changed):
    head = {**head_of(method, seed, **changed), **dict(end)}
    return write_run(results, head, ramp(9.0, best), trace=trace_of(method) if traced else None)


@pytest.fixture
def page(dealing, monkeypatch, tmp_path):
    """Runs the program; returns README.md and the rows of cells.csv by method and `deal`."""

    def run(results):
        target = tmp_path / "target"
        monkeypatch.setattr(sys, "argv", ["dealing.py", str(results), str(target), "--levels", "0.6"])
        dealing.main()
        with (target / "cells.csv").open() as file:
            rows = {(row["method"], row["deal"]): row for row in csv.DictReader(file)}
        return (target / "README.md").read_text(), rows

    return run


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"workload_options": {"width": 16}}, "has width 16, and "),
        ({"fingerprint": "cd" * 32}, "has data cdcd"),
        ({"lr": 0.3}, "has lr 0.3, and "),
        ({"optimizer_state": "reset"}, "has optimizer_state reset, and "),
    ],
)
def test_runs_that_differ_in_more_than_the_cell_are_refused(changed, said, page, capsys, tmp_path):
    write(tmp_path, "ist", 0)
    write(tmp_path, "ist", 1)
    write(tmp_path, "ist", 2, end={"cell": "other"}, **changed)
    with pytest.raises(SystemExit):
        page(tmp_path)
    assert said in capsys.readouterr().err


def test_runs_on_other_nodes_may_evaluate_after_other_steps(page, tmp_path):
    for method in ("local_sgd", "ddp", "ist"):
        for nodes, every in ((2, 390), (4, 195)):
            end = {"config": {**head_of(method)["config"], "nodes": nodes, "eval_every": every}}
            write(tmp_path, method, end={"cell": f"{method}-{nodes}", **end})
    assert "2 nodes, to 0.6" in page(tmp_path)[0]


def test_a_seed_that_is_twice_in_a_cell_is_refused(page, capsys, tmp_path):
    write(tmp_path, "ist", 1)
    write(tmp_path, "ist", 1, end={"cell": "again"})
    with pytest.raises(SystemExit):
        page(tmp_path)
    assert "are one cell with seed 1 twice" in capsys.readouterr().err


def test_runs_that_are_not_on_the_page_are_named(page, capsys, tmp_path):
    for method in ("local_sgd", "ddp", "ist"):
        write(tmp_path, method)
    write(tmp_path, "ist", 1, end={"status": "failed", "error": str(diverged(math.nan, "step 7 on node 1"))})
    running = write(tmp_path, "ddp", 1, end={"status": "running"})
    broken = write(tmp_path, "ddp", 2)
    broken.events_jsonl.write_text("{")
    text, rows = page(tmp_path)
    said = capsys.readouterr().err
    for part in ("diverged and counts as a miss", "has not finished and is left out (status: running)"):
        assert part in said
        assert part in text
    assert str(broken.path) in said
    assert running.path.name in said
    ist = rows["ist", "all"]
    assert (ist["seeds"], ist["seconds to 0.6 at 1 Gbit/s, reached"]) == ("2", "1")
    assert ist["seconds to 0.6 at 1 Gbit/s"] == ""


def test_a_level_that_no_row_reaches_has_no_panel(page, tmp_path):
    for method in ("local_sgd", "ddp", "ist"):
        write(tmp_path, method, best=0.5)
    assert "2 nodes, to 0.6: no run reaches it." in page(tmp_path)[0]


def test_a_run_without_a_trace_has_accuracy_and_bytes_alone(page, tmp_path):
    for method in ("local_sgd", "ddp"):
        write(tmp_path, method)
    write(tmp_path, "ist", traced=False)
    text, rows = page(tmp_path)
    ist = rows["ist", "all"]
    assert (ist["finals"], ist["megabytes"], ist["operations"]) == ("0.9000", "0.1", "")
    assert ist["seconds to 0.6 at 1 Gbit/s"] == "" != rows["ddp", "all"]["seconds to 0.6 at 1 Gbit/s"]
    assert "no trace to replay" in text


def test_ranges_of_seconds_are_in_the_table_and_the_file(page, tmp_path):
    for method in ("local_sgd", "ddp", "ist"):
        for seed, best in enumerate((0.7, 0.8, 0.9)):
            write(tmp_path, method, seed, best=best)
    text, rows = page(tmp_path)
    low, middle, high = (
        float(rows["ist", "all"][f"seconds to 0.6 at 1 Gbit/s{part}"]) for part in (", low", "", ", high")
    )
    assert low < middle < high
    assert f"{middle:.3f} \\[{low:.3f}–{high:.3f}\\]" in text


def test_a_long_run_stands_beside_the_paper(page, tmp_path):
    long = {"train": 800}  # 25,600 samples are 32 epochs of it
    for method in ("local_sgd", "ddp", "ist"):
        head = head_of(method, workload_options={"width": 16})
        head["data_source"] |= long
        write_run(tmp_path, head, ramp(9.0), trace=trace_of(method))
    text, _ = page(tmp_path)
    assert "published `ddp` 0.9128, `local_sgd` 0.9087, `ist` 0.9102; here " in text
    assert "`ist deal=all` on 2 nodes 0.9000" in text
    assert "here width 16, not 64; 30 epochs; CIFAR-10, 900 samples" in text
    short = tmp_path / "short"
    write(short, "ist")
    assert "Beside the paper" not in page(short)[0]
