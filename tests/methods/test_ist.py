"""What IST refuses before any process starts."""

from types import SimpleNamespace

import pytest
from torch import nn

from istbench.errors import UserError
from istbench.methods.ist import IndependentSubnetTraining
from istbench.subnets.structure import chain_groups


def cut(*layers: nn.Module, nodes: int = 2) -> None:
    model = nn.Sequential(*layers)
    workload = SimpleNamespace(name="images", neuron_groups=lambda model: chain_groups(model, model))
    IndependentSubnetTraining.check(IndependentSubnetTraining.Options(), model, workload, nodes)


def test_a_model_that_cannot_be_cut_is_refused_by_the_name_of_its_layer() -> None:
    cut(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    with pytest.raises(UserError, match="workload 'images': 1 is a depth-wise convolution"):
        cut(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 4, 1))


def test_more_nodes_than_channels_are_refused() -> None:
    with pytest.raises(UserError, match="'hidden1' has 4 units for 5 nodes"):
        cut(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nodes=5)
