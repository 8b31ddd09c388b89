"""Parameters that nobody trains stay as they are, and cross no network.

Functions named `node_*` run on every node.
"""

import pytest
import torch
from torch import nn

from istbench.conformance.training import assembled, set_up, train
from istbench.methods.base import materialise
from istbench.processes.on_nodes import on_nodes
from istbench.subnets.groups import NeuronGroup, Slot
from istbench.workloads.toy import Toy, ToyOptions

FEATURES, BACKBONE, HIDDEN = 64, 64, 4
FAMILY = ["local_sgd", "diloco", "noloco", "sparseloco", "streaming_diloco"]


class Tuned(nn.Module):
    """A small head behind a backbone."""

    def __init__(self, features, classes, frozen):
        super().__init__()
        self.backbone = nn.Linear(features, BACKBONE).requires_grad_(not frozen)
        self.hidden = nn.Linear(BACKBONE, HIDDEN)
        self.output = nn.Linear(HIDDEN, classes)

    def forward(self, x):
        return self.output(torch.tanh(self.hidden(torch.tanh(self.backbone(x)))))


class TunedToy(Toy):
    name = "tuned"
    frozen = True

    def build_model(self):
        return Tuned(self.options.features, self.options.classes, self.frozen)

    def neuron_groups(self, model):
        slots = (Slot("hidden.weight", 0), Slot("hidden.bias", 0), Slot("output.weight", 1))
        return [NeuronGroup("hidden", HIDDEN, slots)]


def node_trained(fabric, method, options, frozen, steps):
    """Bytes that this node sent in training and for assembling; whether the backbone is that of the seed."""
    workload = TunedToy(ToyOptions(features=FEATURES))
    workload.frozen = frozen
    workload.open(workload.prepare(None, None, None))
    with torch.device("meta"):
        model = workload.build_model()
    before = materialise(model, workload, 0, fabric.device).backbone.weight.clone()
    built = set_up(fabric, workload, method, options)
    train(fabric, workload, built, 0, steps)
    whole = assembled(fabric, built)
    same = whole is None or torch.equal(whole.backbone.weight, before)
    return fabric.traffic["training"].sent, fabric.traffic["assemble"].sent, same


def values_of_the_backbone():
    return (FEATURES + 1) * BACKBONE


@pytest.mark.parametrize("method", FAMILY)
def test_rounds_send_the_changes_of_trained_parameters_alone(method):
    options = {"local_steps": 4}
    frozen, moving = (on_nodes(node_trained, 2, method, options, frozen, 4)[0] for frozen in (True, False))
    assert frozen[2]
    assert not moving[2]
    assert 0 < frozen[0] < 0.6 * moving[0]


@pytest.mark.parametrize("options", [{}, {"deal": "hidden"}, {"optimizer": "adamw", "lr": 0.01}])
@pytest.mark.parametrize("method", ["ist", "streaming_ist"])
def test_subnets_average_no_frozen_layer(method, options):
    options = {"local_steps": 4, **options}
    frozen, moving = (on_nodes(node_trained, 2, method, options, frozen, 4)[0] for frozen in (True, False))
    assert frozen[2]
    assert not moving[2]
    assert moving[0] - frozen[0] >= 4 * values_of_the_backbone()


def test_an_all_reduce_is_smaller_by_the_frozen_values():
    frozen, moving = (
        on_nodes(node_trained, 2, "local_sgd", {"local_steps": 2}, frozen, 4) for frozen in (True, False)
    )
    assert moving[0][0] - frozen[0][0] == 2 * 4 * values_of_the_backbone(), "two rounds, one model each way"


def test_inside_a_round_an_assembled_model_has_the_frozen_values():
    for method in ("local_sgd", "diloco", "ist"):
        assert on_nodes(node_trained, 2, method, {"local_steps": 4}, True, 3)[0][2]
