"""Metrics that fall as a model gets better."""

import pytest

from istbench.results.metrics import agreement, named_as_falling


@pytest.mark.parametrize(
    "name",
    [
        "loss", "val_loss", "perplexity", "test perplexity", "top5_error", "WER", "test-cer", "valLoss", "RMSE",
        "cross_entropy", "negative_log_likelihood", "bits_per_byte", "bpc",
    ],
)  # fmt: skip
def test_losses_and_errors_fall_by_their_names(name):
    assert named_as_falling(name)


@pytest.mark.parametrize(
    "name",
    ["accuracy", "top5", "top10", "precision@3", "recall@10", "f1", "bleu", "auc", "lossless_share", "errorless"],
)
def test_shares_do_not(name):
    assert not named_as_falling(name)


def test_metrics_agree_where_they_rise_together():
    assert agreement([0.1, 0.2, 0.4], [0.2, 0.5, 0.6]) == 1.0
    assert agreement([90.0, 30.0, 12.0], [0.2, 0.5, 0.6]) == -1.0
    assert agreement([0.1, 0.2, 0.4, 0.3], [0.2, 0.5, 0.6, 0.7]) == pytest.approx(4 / 6)
    assert agreement([0.1, None, 0.4, 0.4], [0.2, 0.5, 0.6, 0.6]) == 1.0


def test_where_nothing_changes_nothing_is_known():
    assert agreement([], []) is None
    assert agreement([1.0, 1.0], [0.2, 0.5]) is None
    assert agreement([float("nan"), 1.0], [0.2, 0.5]) is None


def test_a_long_run_is_compared_in_little_time():
    rising = [float(step) for step in range(100_000)]
    assert agreement(rising, rising) == 1.0
