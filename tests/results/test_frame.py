"""Results as a data frame."""

import csv
import math

import msgspec
import pytest
from fake_clusters import BARE
from fake_runs import averaging_trace, evaluation, header, ramp, write_plausible, write_run

from istbench.results.frame import frame_of, write_evaluations
from istbench.results.load import load_runs


def evaluations_frame(results, **clusters):
    return frame_of(load_runs(results)[0], clusters)


def test_a_row_is_an_evaluation_with_what_its_run_was(results):
    write_plausible(results, "ddp")
    write_plausible(results, "ist", seed=1)
    frame = evaluations_frame(results)
    assert len(frame) == 2 * 31
    assert {"cell", "method", "nodes", "seed", "step", "train_s", "bytes_sent_per_node", "accuracy"} <= set(frame)
    assert set(frame.metric) == {"accuracy"}
    assert not frame.lower_is_better.any()
    best = frame.groupby("method").accuracy.max()
    assert best["ddp"] > best["ist"] > 0.7


def test_a_metric_called_as_a_column_of_istbench_has_a_column_beside_it(results):
    own = {"accuracy": 0.5, "samples": 3.0, "step": 7.0, "seed": 4.0}
    write_run(results, header(), [msgspec.structs.replace(evaluation(10, 3.0, 0.5), metrics=own)])
    (row,) = evaluations_frame(results).to_dict("records")
    assert (row["accuracy"], row["metric_samples"], row["metric_step"], row["metric_seed"]) == (0.5, 3.0, 7.0, 4.0)
    assert (row["step"], row["seed"]) == (10, 0)


def test_a_data_frame_with_cluster_seconds(results):
    write_run(results, header(), [evaluation(0, 0.0, 0.1), evaluation(10, 3.0, 0.5)], trace=averaging_trace(2))
    write_run(results, header("ist"), ramp(9.0))
    frame = evaluations_frame(results, cluster_s=BARE)
    assert frame[frame.method == "ddp"].cluster_s.tolist() == pytest.approx([0.0, 10.1])
    assert all(math.isnan(value) for value in frame[frame.method == "ist"].cluster_s)
    assert "cluster_s" not in evaluations_frame(results)


def test_evaluations_in_a_file_hold_no_formula_and_replace_a_link(results, tmp_path):
    own = {"accuracy": 1 / 3, "=1+1": None}
    evaluations = [evaluation(0, 0.0, 0.1), msgspec.structs.replace(evaluation(10, 3e9, 0.5, sent=12), metrics=own)]
    write_run(results, header(method_label="@SUM(1)"), evaluations)
    private, path = tmp_path / "private", tmp_path / "evaluations.csv"
    private.write_text("mine")
    path.symlink_to(private)
    write_evaluations(results, path)
    assert private.read_text() == "mine"
    first, last = csv.DictReader(path.read_text().splitlines())
    assert {row["method_label"] for row in (first, last)} == {"'@SUM(1)"}
    assert (last["accuracy"], last["train_s"], last["bytes_sent_per_node"], last["'=1+1"]) == (
        "0.333333", "3e+09", "12", ""
    )  # fmt: skip
    assert (first["train_loss"], first["lower_is_better"]) == ("", "False")
