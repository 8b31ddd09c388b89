"""Parameters that nobody trains stay as they are, and cross no network.

Functions named `node_*` run on every node.
"""

import pytest
import torch
from torch import nn

from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.base import materialise
from istbench.studies.conformance.training import assembled, set_up, train
from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot
from istbench.workloads.toy import Toy, ToyOptions

FEATURES, BACKBONE, HIDDEN = 64, 64, 4
FAMILY = ["local_sgd", "diloco", "noloco", "sparseloco", "streaming_diloco"]
SUBNETS = ["ist", "streaming_ist"]
DEALS = [{}, {"deal": "hidden"}, {"optimizer": "adamw", "lr": 0.01}]
CASES = [
    *((method, {"local_steps": 4}, 4) for method in FAMILY),
    *((method, {"local_steps": 4, **options}, 4) for method in SUBNETS for options in DEALS),
    ("local_sgd", {"local_steps": 2}, 4),
    *((method, {"local_steps": 4}, 3) for method in ("local_sgd", "diloco", "ist")),
]
"""A method, its options and the steps that it trains."""


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


def node_trained(fabric, method, options, steps, frozen):
    """Bytes that this node sent in training; whether the backbone is that of the seed."""
    for traffic in fabric.traffic.values():
        traffic.sent = traffic.received = 0
    workload = TunedToy(ToyOptions(features=FEATURES))
    workload.frozen = frozen
    workload.open(workload.prepare(None, None, lambda *_: None))
    with torch.device("meta"):
        model = workload.build_model()
    before = materialise(model, workload, 0, fabric.device).backbone.weight.clone()
    built = set_up(fabric, workload, method, options)
    train(fabric, workload, built, 0, steps)
    whole = assembled(fabric, built)
    same = whole is None or torch.equal(whole.backbone.weight, before)
    built.drain()
    return fabric.traffic["training"].sent, same


def node_cases(fabric):
    """By case, what `node_trained` tells with a frozen and with a moving backbone."""
    return {repr(case): [node_trained(fabric, *case, frozen) for frozen in (True, False)] for case in CASES}


@pytest.fixture(scope="module")
def trained():
    """What rank 0 tells of a case; one launch trains all."""
    found = on_nodes(node_cases, 2)[0]
    return lambda *case: found[repr(case)]


def values_of_the_backbone():
    return (FEATURES + 1) * BACKBONE


@pytest.mark.parametrize("method", FAMILY)
def test_rounds_send_the_changes_of_trained_parameters_alone(trained, method):
    (frozen, kept), (moving, moving_kept) = trained(method, {"local_steps": 4}, 4)
    assert kept
    assert not moving_kept
    assert 0 < frozen < 0.6 * moving


@pytest.mark.parametrize("options", DEALS)
@pytest.mark.parametrize("method", SUBNETS)
def test_subnets_average_no_frozen_layer(trained, method, options):
    (frozen, kept), (moving, moving_kept) = trained(method, {"local_steps": 4, **options}, 4)
    assert kept
    assert not moving_kept
    assert moving - frozen >= 4 * values_of_the_backbone()


def test_an_all_reduce_is_smaller_by_the_frozen_values(trained):
    (frozen, _), (moving, _) = trained("local_sgd", {"local_steps": 2}, 4)
    assert moving - frozen == 2 * 4 * values_of_the_backbone(), "two rounds, one model each way"


@pytest.mark.parametrize("method", ["local_sgd", "diloco", "ist"])
def test_inside_a_round_an_assembled_model_has_the_frozen_values(trained, method):
    (_, kept), _ = trained(method, {"local_steps": 4}, 3)
    assert kept


class Normalised(nn.Module):
    """A hidden layer behind which a BatchNorm keeps its statistics in training too."""

    def __init__(self, features, classes):
        super().__init__()
        self.hidden = nn.Linear(features, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN).requires_grad_(False).eval()
        self.output = nn.Linear(HIDDEN, classes)

    def forward(self, x):
        return self.output(torch.tanh(self.norm(self.hidden(x))))


class NormalisedToy(Toy):
    """Both the frozen weights of the BatchNorm and its means number the units."""

    name = "normalised"

    def build_model(self):
        return Normalised(self.options.features, self.options.classes)

    def initial_rows(self, model, name, rows, seed):
        if name != "norm.weight":
            return super().initial_rows(model, name, rows, seed)
        numbers = torch.arange(1.0, HIDDEN + 1)
        return numbers if rows is None else numbers[rows]

    def initial_buffer(self, model, name):
        return torch.arange(1.0, HIDDEN + 1) if name == "norm.running_mean" else super().initial_buffer(model, name)

    def neuron_groups(self, model):
        of_norm = [Slot(f"norm.{name}", 0) for name in ("weight", "bias", "running_mean", "running_var")]
        slots = (Slot("hidden.weight", 0), Slot("hidden.bias", 0), *of_norm, Slot("output.weight", 1))
        return [NeuronGroup("hidden", HIDDEN, slots)]


def node_normalised(fabric, method, rounds):
    """After each round, the units of this node by the weights and by the means; then the means of the whole."""
    workload = NormalisedToy(ToyOptions(features=FEATURES))
    workload.open(workload.prepare(None, None, lambda *_: None))
    built = set_up(fabric, workload, method, {"local_steps": 3})
    held = []
    for number in range(rounds):
        train(fabric, workload, built, 3 * number, 3 * number + 3)
        subnet = built.state_dict()["subnet"]
        held.append((subnet["norm.weight"].tolist(), subnet["norm.running_mean"].tolist()))
    whole = assembled(fabric, built)
    return held, None if whole is None else [whole.norm.running_mean.tolist(), whole.norm.training]


@pytest.mark.parametrize("method", SUBNETS)
def test_the_statistics_of_a_frozen_layer_travel_with_their_units(method):
    (held, whole), (others, _) = on_nodes(node_normalised, 2, method, 6)
    for weights, means in (*held, *others):
        assert weights == means
    assert len({tuple(means) for _, means in held}) > 1, "the units never moved"
    assert whole == [[1.0, 2.0, 3.0, 4.0], False]
