"""Optimizer state that travels with the hidden units. Functions named `node_*` run on every node."""

import pytest
import torch
from reference_ist import reference_ist
from torch import nn

from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.digest import weights_sha256
from istbench.studies.conformance.training import assembled, largest_difference, set_up, through_disk, train
from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot
from istbench.workloads.toy import Toy, ToyOptions

EXACT = 2e-5  # float32 sums in another order, over some tens of steps


class Rare(nn.Module):
    """`rare` is used by minibatches that happen to start with a point on one side, `frozen` never trained."""

    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.rare = nn.Linear(hidden, hidden)
        self.frozen = nn.Linear(hidden, hidden, bias=False).requires_grad_(False)
        self.shift = nn.Linear(classes, classes)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x):
        rarely = bool(x[0, 0] > 0)
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.rare(x)) if rarely else x
        x = self.output(x + self.frozen(x))
        return self.shift(x) if rarely else x


class RareToy(Toy):
    name = "rare"

    def build_model(self):
        return Rare(self.options.features, self.options.hidden, self.options.classes)

    def neuron_groups(self, model):
        first = [Slot(name, 0) for name in ("first.weight", "first.bias")]
        # One group, whose units index both dimensions of the square layers: a residual connection.
        square = [Slot(f"{layer}.weight", dim) for layer in ("rare", "frozen") for dim in (0, 1)]
        slots = (*first, *square, Slot("rare.bias", 0), Slot("output.weight", 1))
        return [NeuronGroup("hidden", self.options.hidden, slots)]


def rare_workload():
    workload = RareToy(ToyOptions(hidden=13))
    workload.open(workload.prepare(None, None, lambda *_: None))
    return workload


def node_against_reference(fabric, steps, options):
    """Which parameters have state after a step, and how far the model after `steps` is from the reference's."""
    workload = rare_workload()
    options = {"weight_decay": 0.01, "local_steps": 2, **options}
    method = set_up(fabric, workload, "ist", options)
    train(fabric, workload, method, 0, 1)
    held = [*method.state_dict()["optimizer"]["state"]]
    train(fabric, workload, method, 1, steps)
    model = assembled(fabric, method)
    if model is None:
        return held, None
    wanted = reference_ist(workload, method.options, nodes=fabric.world_size, local_steps=2, steps=steps, seed=0)
    return held, largest_difference(model, wanted)


@pytest.mark.parametrize("options", [{"lr": 0.05, "momentum": 0.9}, {"lr": 0.005, "optimizer": "adamw"}])
@pytest.mark.parametrize("nodes", [2, 3])
def test_state_of_a_parameter_that_only_some_nodes_have_used_travels(nodes, options):
    results = on_nodes(node_against_reference, nodes, 12, options)
    assert len({tuple(held) for held, _ in results}) > 1, "the first minibatches of all nodes use the same layers"
    assert results[0][1] < EXACT


def node_adam_resumed(fabric, steps):
    """Weights of a run, and of one that goes on from its checkpoint after its first, incomplete round of state."""
    workload = rare_workload()
    options = {"optimizer": "adamw", "lr": 0.01, "local_steps": 1}
    whole, first, second = (set_up(fabric, workload, "ist", options) for _ in range(3))
    train(fabric, workload, whole, 0, steps)
    train(fabric, workload, first, 0, 1)
    second.load_state_dict(through_disk(first.state_dict(), fabric.rank))
    train(fabric, workload, second, 1, steps)
    models = [assembled(fabric, method) for method in (whole, second)]
    return [
        model and (weights_sha256(model), all(bool(p.isfinite().all()) for p in model.parameters()))
        for model in models
    ]


def test_adam_with_state_on_some_nodes_alone_trains_and_a_resumed_run_is_the_run():
    (whole, resumed), *_ = on_nodes(node_adam_resumed, 3, 12)
    assert whole == resumed
    assert whole[1] is True


def node_local_sgd(fabric):
    """Sizes of every state of the optimizer after a round of one step, which only some nodes have a gradient in."""
    workload = rare_workload()
    options = {"momentum": 0.9, "local_steps": 1, "average_optimizer": True}
    method = set_up(fabric, workload, "local_sgd", options)
    train(fabric, workload, method, 0, 1)
    state = method.state_dict()["optimizer"]["state"]
    return [float(slots["momentum_buffer"].abs().sum()) for _, slots in sorted(state.items())]


def test_local_sgd_averages_the_momentum_that_some_nodes_do_not_have_yet():
    first, *others = on_nodes(node_local_sgd, 2)
    assert len(first) == 8
    assert all(first)
    assert others == [first]


def node_counts(fabric, steps):
    """The numbers of updates of a node's parameters: before the nodes average them, and after."""
    found = []
    for local_steps in (steps + 1, steps):
        workload = rare_workload()
        options = {"optimizer": "adamw", "lr": 0.005, "local_steps": local_steps, "average_optimizer": True}
        method = set_up(fabric, workload, "local_sgd", options)
        train(fabric, workload, method, 0, steps)
        state = method.state_dict()["optimizer"]["state"]
        found.append([float(state[own]["step"]) if own in state else 0.0 for own in map(str, range(9))])
    return found


def test_local_sgd_averages_the_numbers_of_updates_with_adams_moments():
    before, after = zip(*on_nodes(node_counts, 2, 8), strict=True)
    assert before[0] != before[1], "the minibatches of both nodes use the same layers as often"
    assert after[0] == after[1] == [sum(counts) / 2 for counts in zip(*before, strict=True)]
