"""P3's gains on estimated GPUs: the tables and pictures of finished runs."""

import sys
from pathlib import Path

from p3_runs import SIZES, write_p3_run, write_p3_runs

from istbench.results.load import load_runs

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "bench"))
import gpu_gains


def test_gains_are_replayed_by_bandwidth_and_by_setting(results):
    write_p3_runs(results)
    tables, plots = gpu_gains.study(load_runs(results)[0], (4.0, 15.0), (gpu_gains.GpuSetting(2.0, 20e-6),))
    *tables, by_ratio, published_gains = tables
    assert len(tables) == 3  # there is no sweep of slices
    assert [row[1].text for row in tables[0].rows][:3] == ["p3", "slicing alone", "p3, over whole tensors"]
    assert plots[0].panels[0].title == "Translation (Sockeye's sizes)"
    assert len(tables[-1].rows) == 2  # a setting each
    assert [row[1].text for row in by_ratio.rows] == ["p3", "slicing alone"]
    names = [entry.text for entry in published_gains.rows[0]][:4]
    assert names == ["Translation (Sockeye's sizes)", "p3", "–", "1.38"]
    assert [plot.stem for plot in plots] == ["gains", "ratio"]


def test_further_tables_have_the_first_seed_alone(results):
    write_p3_runs(results)
    before, _ = gpu_gains.study(load_runs(results)[0], (4.0,), ())
    write_p3_run(results, "p3-1", *SIZES["p3"][:2], 5_000_000, seed=1)
    after, _ = gpu_gains.study(load_runs(results)[0], (4.0,), ())
    assert after == before


def test_replayed_seconds_are_laid_over_the_ratio_without_a_replay(tmp_path):
    published = Path(__file__).parents[2] / "results" / "paper-p3"
    text = gpu_gains.redraw(published / "gains.csv", tmp_path)
    assert (tmp_path / "ratio.csv").read_text() == (published / "ratio.csv").read_text()
    assert (tmp_path / "ratio.svg").exists()
    readme = (published / "README.md").read_text()
    assert all(line in readme for line in text.splitlines() if line.startswith("| "))


def test_no_run_gives_no_table():
    assert gpu_gains.study([], (4.0,), ()) == ((), ())
