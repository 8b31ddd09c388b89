"""Evaluations in one file for others."""

import importlib.util

import pandas as pd
import pytest
from fake_runs import write_plausible

import istbench
from istbench.base.errors import UserError
from istbench.cli import main
from istbench.results.frame import write_rows


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_an_export_reads_back_as_the_curves(results, ending, capsys):
    if ending == "parquet" and importlib.util.find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed")
    for seed in range(2):
        write_plausible(results, "ddp", seed=seed)
    with pytest.raises(SystemExit, match="0"):
        main(["export", "--format", ending, str(results)])
    assert "evaluations of 2 runs" in capsys.readouterr().out
    read = istbench.read_rows(results / f"evaluations.{ending}")
    pd.testing.assert_frame_equal(read, istbench.load(results).curves, check_dtype=False)
    assert {str(read[name].dtype) for name in ("seed", "nodes", "step", "samples")} == {"int64"}


def test_a_line_separator_in_a_text_ends_no_row(tmp_path):
    write_rows(pd.DataFrame([{"cell": "a\u2028b"}, {"cell": "c"}]), tmp_path / "x.jsonl")
    assert list(istbench.read_rows(tmp_path / "x.jsonl").cell) == ["a\u2028b", "c"]


def test_no_number_is_null_and_reads_back_as_none(tmp_path):
    write_rows(
        pd.DataFrame([{"cell": "a", "loss": float("nan")}, {"cell": "b", "loss": 1.5}]), tmp_path / "x.jsonl"
    )
    assert '"loss":null' in (tmp_path / "x.jsonl").read_text()
    assert list(istbench.read_rows(tmp_path / "x.jsonl").loss.isna()) == [True, False]


def test_other_files_are_refused_in_a_line(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="ends in none of"):
        istbench.read_rows(tmp_path / "x.csv")
    (tmp_path / "x.jsonl").write_text('{"cell": "a"}\n{"cell": [1]}\n')
    with pytest.raises(UserError, match=r"x\.jsonl:2"):
        istbench.read_rows(tmp_path / "x.jsonl")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match="pip install pyarrow"):
        istbench.read_rows(tmp_path / "x.parquet")
