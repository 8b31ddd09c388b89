"""P3's gains: replayed on estimated GPUs, and measured."""

import pytest
from fake_runs import averaging_trace, header, ramp, write_run
from p3_runs import write_p3_run, write_p3_runs

from istbench.results.load import load_runs
from istbench.studies.reproduce.cells import Overrides, subjects_of
from istbench.studies.reproduce.gains import ReplayedGains, levelled
from istbench.studies.reproduce.papers import PAPERS

PAPER, SOURCE = PAPERS["p3"], "P3 (arXiv 1905.03960)"


@pytest.fixture
def traced(results):
    """Runs of the translation model at laptop scale: every configuration, p3 with the smallest messages."""
    write_p3_runs(results)
    return results


def test_gains_are_replayed_beside_the_published_ones(traced):
    extent = PAPER.experiments[0].at["laptop"]
    subjects = subjects_of(extent, Overrides(), load_runs(traced)[0], ())
    found = ReplayedGains(source=SOURCE, bandwidths=(4.0, 15.0)).compare(subjects)
    rows = {(row.network, row.method): row for row in found.rows}
    assert len(rows) == 4
    here = rows["translation", "p3"]
    # The messages are half as long; at every bandwidth p3 takes at most the baseline's time.
    assert here.published == 1.38
    assert 1 < here.ours.median <= 2
    assert here.ours_text.endswith("the largest, at 4 Gbit/s")
    assert rows["model=vgg19", "p3"].ours_text == "not trained"


def test_gains_are_the_median_over_seeds(traced):
    for method, options, size in (
        ("parameter_server", {"slice_params": 0, "split_params": 1_000_000}, 6_000_000),
        ("p3", {"slice_params": 50_000, "split_params": 0, "priority": True}, 5_000_000),
    ):
        write_p3_run(traced, f"{method}-1", method, options, size, seed=1)
    extent = PAPER.experiments[0].at["laptop"]
    measure = ReplayedGains(source=SOURCE, bandwidths=(4.0, 15.0))
    found = measure.compare(subjects_of(extent, Overrides(seeds=2), load_runs(traced)[0], ()))
    (row,) = (row for row in found.rows if (row.network, row.method) == ("translation", "p3"))
    assert (row.trained, row.ours.seeds) == (2, 2)
    assert row.ours.low < row.ours.median < row.ours.high
    assert "–" in row.spread_text


def test_a_damaged_trace_leaves_its_run_out_with_a_line(traced):
    (traced / "runs" / "p3" / "trace.npz").write_bytes(b"cut short")
    extent = PAPER.experiments[0].at["laptop"]
    measure = ReplayedGains(source=SOURCE, bandwidths=(4.0, 15.0))
    found = measure.compare(subjects_of(extent, Overrides(), load_runs(traced)[0], ()))
    (row,) = (row for row in found.rows if row.network == "translation")
    assert (row.ours_text, row.trained, row.reached) == ("not trained", 0, 0)
    (problem,) = found.problems
    assert problem.startswith("p3: ")


def test_nothing_recorded_is_said_in_every_row():
    extent = PAPER.experiments[0].at["laptop"]
    found = ReplayedGains(source=SOURCE).compare(subjects_of(extent, Overrides(), (), ()))
    assert {row.ours_text for row in found.rows} == {"not trained"}
    assert (found.tables, found.plots) == ((), ())


def test_levelled_steps_all_compute_the_same_seconds():
    trace = levelled(averaging_trace(2, compute=(0.5, 0.1)), 0.25)
    for events in trace.nodes:
        assert events["seconds"].sum() == pytest.approx(3 * 0.25)


def test_measured_gains_compare_samples_a_second(results):
    cells = {
        "baseline": ("parameter_server", {"split_params": 1_000_000}, 3.0),
        "p3": ("p3", {"slice_params": 50_000, "priority": True, "split_params": 0}, 2.0),
    }
    for cell, (method, options, seconds) in cells.items():
        head = header(method, workload="imagenet", cell=cell, nodes=4, budget="40 steps")
        head["config"] |= {"method_options": options, "batch_size": 32, "steps": 40, "eval_every": 40}
        head["config"] |= {"workload_options": {"model": "vgg19", "samples": 256}}
        write_run(results, head, ramp(seconds))
    extent = PAPER.experiments[0].at["paper"]
    found = extent.measure.compare(subjects_of(extent, Overrides(), load_runs(results)[0], ()))
    rows = [row for row in found.rows if row.ours is not None]
    assert [(row.network, row.published, row.ours.median, row.aspects) for row in rows] == [
        ("model=vgg19", 1.66, 1.5, ()),
        ("model=vgg19", 1.61, 1.5, ("nodes",)),  # on eight machines
    ]
    assert (rows[0].reached, rows[0].planned) == (1, 3)
