"""Results as a data frame."""

from fake_runs import write_plausible

from istbench.results.frame import evaluations_frame


def test_a_row_is_an_evaluation_with_what_its_run_was(results):
    write_plausible(results, "ddp")
    write_plausible(results, "ist", seed=1)
    frame = evaluations_frame(results)
    assert len(frame) == 2 * 31
    assert {"cell", "method", "nodes", "seed", "step", "train_s", "bytes_sent_per_node", "accuracy"} <= set(frame)
    best = frame.groupby("method").accuracy.max()
    assert best["ddp"] > best["ist"] > 0.7
