"""Ranking metrics on cases worked by hand, beside a plain definition, and from blocks of labels."""

import math

import pytest
import torch

from istbench.workloads.extreme_data.points import SparseBatch
from istbench.workloads.extreme_evaluation import RankingMetrics, TopLabels, inverse_propensities


def truth_of(labels, columns):
    ends = torch.tensor([len(own) for own in labels]).cumsum(0)
    entries = torch.tensor([label for own in labels for label in own], dtype=torch.int64)
    return SparseBatch(torch.cat([torch.zeros(1, dtype=torch.int64), ends]), entries, None, columns)


def measured(ranked, labels, weights):
    metrics = RankingMetrics(torch.tensor(weights, dtype=torch.float64))
    metrics.add(torch.tensor(ranked), truth_of(labels, len(weights)), loss=3.0)
    return metrics.results()


def test_two_points_by_hand():
    # The first has labels 0 and 5, found at the first and the third place; the second has label 1, not found.
    found = measured([[0, 3, 5, 2, 4], [0, 2, 3, 4, 5]], [[5, 0], [1]], [1, 2, 1, 1, 1, 4])
    third = 1 / math.log2(4)
    ideal = 1 + 1 / math.log2(3)
    expected = {
        "precision@1": 1 / 2,
        "precision@3": (2 / 3) / 2,
        "precision@5": (2 / 5) / 2,
        "ndcg@1": 1 / 2,
        "ndcg@3": (1 + third) / ideal / 2,
        "ndcg@5": (1 + third) / ideal / 2,
        "psp@1": 1 / (4 + 2),  # the best first labels are 5 and 1, with weights 4 and 2
        "psp@3": (1 + 4) / (1 + 4 + 2),
        "psp@5": (1 + 4) / (1 + 4 + 2),
        "loss": 3 / 2,
    }
    assert found == pytest.approx(expected)


def test_precision_is_divided_by_k_and_points_without_labels_count():
    found = measured([[2, 1, 0, 3, 4], [0, 1, 2, 3, 4]], [[2], []], [1.0] * 5)
    assert found["precision@1"] == 1 / 2
    assert found["precision@5"] == pytest.approx(1 / 10)
    assert found["ndcg@5"] == 1 / 2
    assert found["psp@5"] == 1


def test_nothing_to_measure_is_no_number():
    results = RankingMetrics(torch.ones(3)).results()
    assert set(results) == {"loss", *(f"{name}@{k}" for name in ("precision", "ndcg", "psp") for k in (1, 3, 5))}
    assert all(math.isnan(value) for value in results.values())


def plainly(scores, labels, weights, k):
    """Precision, nDCG and PSP at k, one point at a time."""
    precision = gain = scored = best = 0.0
    for row, own in zip(scores.tolist(), labels, strict=True):
        ranked = sorted(range(len(row)), key=lambda label: -row[label])[:k]
        precision += sum(label in own for label in ranked) / k
        ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(own))))
        found = sum(1 / math.log2(place + 2) for place, label in enumerate(ranked) if label in own)
        gain += found / ideal if own else 0
        scored += sum(weights[label] for label in ranked if label in own)
        best += sum(sorted((weights[label] for label in own), reverse=True)[:k])
    return precision / len(labels), gain / len(labels), scored / best


@pytest.mark.parametrize(("columns", "block"), [(7, 3), (700, 700), (1500, 641), (1500, 4)])
def test_random_rankings_in_blocks_are_measured_as_plainly(columns, block):
    generator = torch.Generator().manual_seed(columns + block)
    scores = torch.randn(40, columns, generator=generator)
    labels = [
        torch.randperm(columns, generator=generator)[: int(count)].tolist()
        for count in torch.randint(0, 7, (40,), generator=generator)
    ]
    for row, own in enumerate(labels):
        scores[row, own[: len(own) // 2 + 1]] += 3
    weights = torch.rand(columns, generator=generator, dtype=torch.float64) + 1
    top, metrics = TopLabels(truth_of(labels, columns)), RankingMetrics(weights)
    for first in range(0, columns, block):
        top.add(first, scores[:, first : first + block])
    torch.testing.assert_close(top.normalisers, scores.logsumexp(1))
    logs = scores.log_softmax(1)
    loss = -sum(float(logs[row, own].mean()) for row, own in enumerate(labels) if own)
    assert top.loss() == pytest.approx(loss, rel=1e-5)
    for rows in torch.arange(40).split(16):
        metrics.add(top.labels[rows], truth_of([labels[row] for row in rows.tolist()], columns), loss=0.0)
    found = metrics.results()
    for k in (1, 3, 5):
        expected = plainly(scores, labels, weights.tolist(), k)
        assert (found[f"precision@{k}"], found[f"ndcg@{k}"], found[f"psp@{k}"]) == pytest.approx(expected)


def test_propensities_are_the_published_formula():
    counts = torch.tensor([0, 1, 100])
    c = (math.log(1000) - 1) * (1.5 + 1) ** 0.55
    expected = [1 + c * math.exp(-0.55 * math.log(count + 1.5)) for count in (0, 1, 100)]
    assert inverse_propensities(counts, 1000, 0.55, 1.5).tolist() == pytest.approx(expected)


def test_another_implementation_agrees():
    metrics = pytest.importorskip("napkinxc.metrics")
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(60, 30, generator=generator)
    labels = [torch.randperm(30, generator=generator)[: 1 + row % 7].tolist() for row in range(60)]
    counts = torch.randint(1, 20, (30,), generator=generator)
    weights = inverse_propensities(counts, 500, 0.55, 1.5)
    top, ours = TopLabels(truth_of(labels, 30)), RankingMetrics(weights)
    top.add(0, scores)
    ours.add(top.labels, top.truth, loss=0.0)
    ranked = top.labels.tolist()
    found = ours.results()
    for k in (1, 3, 5):
        assert found[f"precision@{k}"] == pytest.approx(metrics.precision_at_k(labels, ranked, k=k)[-1])
        assert found[f"ndcg@{k}"] == pytest.approx(metrics.ndcg_at_k(labels, ranked, k=k)[-1])
        theirs = metrics.psprecision_at_k(labels, ranked, weights.numpy(), k=k, normalize=True)
        assert found[f"psp@{k}"] == pytest.approx(theirs[-1])
