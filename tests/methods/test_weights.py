"""The weights of unequal nodes: plain means over nodes become means over samples."""

import pytest
import torch

from istbench.methods.sparseloco import mean_of_sent
from istbench.methods.weights import Weights, weigh

SAMPLES = (3, 1, 4, 8)


def test_equal_nodes_have_no_weights():
    assert Weights.of((), 1) == Weights() == Weights.of((5, 5), 0)
    tensor = torch.ones(2)
    weigh(tensor, 1.0)
    assert torch.equal(tensor, torch.ones(2))


def test_the_mean_over_nodes_is_the_mean_over_samples():
    values = torch.tensor([2.0, 7.0, 1.0, 4.0])
    weighted = [Weights.of(SAMPLES, rank).node * value for rank, value in enumerate(values)]
    assert sum(weighted) / 4 == pytest.approx(float((values * torch.tensor(SAMPLES)).sum() / 16))


def test_the_mean_in_groups_is_the_mean_over_samples():
    values = [2.0, 7.0, 1.0, 4.0]
    weights = [Weights.of(SAMPLES, rank, 2) for rank in range(4)]
    inside = [sum(weights[rank].inside * values[rank] for rank in ranks) / 2 for ranks in ((0, 1), (2, 3))]
    assert inside == pytest.approx([(3 * 2 + 7) / 4, (4 * 1 + 8 * 4) / 12])
    groups = [weights[2 * place].group * own for place, own in enumerate(inside)]
    assert sum(groups) / 2 == pytest.approx((3 * 2 + 7 + 4 + 8 * 4) / 16)
    assert weights[0].group == weights[1].group  # what a group has in common stays so


def test_the_mean_over_senders_weighs_them_by_samples():
    like, weights = torch.zeros(3), [1.5, 0.5]
    sent = [(torch.tensor([0, 1]), torch.tensor([2.0, 4.0])), (torch.tensor([1]), torch.tensor([8.0]))]
    assert mean_of_sent(sent, like, None, weights).tolist() == [2.0, (1.5 * 4 + 0.5 * 8) / 2, 0.0]
    assert mean_of_sent(sent, like, 2, weights).tolist() == [1.5, (1.5 * 4 + 0.5 * 8) / 2, 0.0]
    assert mean_of_sent(sent, like).tolist() == [2.0, 6.0, 0.0]
