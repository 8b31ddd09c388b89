"""A minibatch may give no gradient to a parameter, on one node or on all: experts that no sample chose."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from istbench.base.errors import UserError
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.data_parallel import DataParallel
from istbench.studies.conformance.training import assembled, largest_difference, plain_training, set_up, train
from istbench.workloads.toy import Toy, ToyOptions

EXACT = 2e-5
STEPS = 12
KINDS = 6


class Experts(nn.Module):
    """Each sample takes the expert of its sign pattern, so that small minibatches leave experts out."""

    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.experts = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(KINDS))
        self.output = nn.Linear(hidden, classes)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        chosen = (x[:, 0].abs() * 7).long() % KINDS
        added = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[:, 0]
            if len(mine):
                added = added.index_put((mine,), expert(h[mine]))
        return self.output(h + added)


class ExpertsToy(Toy):
    name = "experts"
    batch_size = 3

    def build_model(self):
        return Experts(self.options.features, self.options.hidden, self.options.classes)


def experts():
    workload = ExpertsToy(ToyOptions(hidden=9))
    workload.open(workload.prepare(None, None, lambda *_: None))
    return workload


def node_difference(fabric, method, options):
    workload = experts()
    built = set_up(fabric, workload, method, options)
    train(fabric, workload, built, 0, STEPS)
    built.drain()
    model = assembled(fabric, built)
    expected = plain_training(workload, DataParallel.Options(lr=0.1), STEPS, nodes=fabric.world_size)
    return 0.0 if model is None else largest_difference(model, expected)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("method", ["ddp", "zero", "p3"])
def test_parameters_without_a_gradient_on_some_nodes_train_as_in_a_plain_loop(method, nodes):
    assert max(on_nodes(node_difference, nodes, method, {"lr": 0.1}, timeout_s=30)) < EXACT


def test_a_minibatch_really_leaves_experts_out():
    workload = experts()
    model = workload.build_model()
    workload.loss(model, workload.train_batch(torch.arange(3), torch.Generator())).backward()
    idle = [expert for expert in model.experts if expert.weight.grad is None]
    assert 0 < len(idle) < KINDS


def node_accumulated(fabric):
    """Two minibatches a step: as one step on both."""
    workload = experts()
    built = set_up(fabric, workload, "ddp", {"lr": 0.1, "accumulate": 2})
    train(fabric, workload, built, 0, 3)
    built.close_round()
    return [float(own.abs().sum()) for own in assembled(fabric, built).parameters()] if fabric.rank == 0 else []


def test_an_open_round_averages_parameters_that_only_one_node_used():
    sums = on_nodes(node_accumulated, 2, timeout_s=30)[0]
    assert all(value > 0 for value in sums)


class Undefined(torch.autograd.Function):
    """Passes its first argument, and no gradient to the second."""

    @staticmethod
    def forward(ctx, x, weight):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Undefining(nn.Module):
    """A backward pass reaches `undefined` without a gradient, and never reaches `never`."""

    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.undefined = nn.Linear(hidden, hidden, bias=False)
        self.never = nn.Linear(3, 3)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.output(Undefined.apply(torch.tanh(self.first(x)), self.undefined.weight))


class UndefiningToy(Toy):
    name = "undefining"

    def build_model(self):
        return Undefining(self.options.features, self.options.hidden, self.options.classes)


def node_undefining(fabric, method):
    workload = UndefiningToy(ToyOptions(hidden=9))
    workload.open(workload.prepare(None, None, lambda *_: None))
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    built = set_up(fabric, workload, method, options)
    train(fabric, workload, built, 0, STEPS)
    expected = plain_training(workload, DataParallel.Options(**options), STEPS)
    return largest_difference(assembled(fabric, built), expected)


@pytest.mark.parametrize("method", ["ddp", "zero"])
def test_one_node_leaves_parameters_alone_whose_gradient_is_undefined(method):
    assert on_nodes(node_undefining, 1, method, timeout_s=30) == [0.0]


class Reentrant(nn.Module):
    """A nested backward pass gives its first layer the other part of a gradient."""

    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first, self.output = nn.Linear(features, hidden), nn.Linear(hidden, classes)

    def forward(self, x):
        h = self.first(x).relu()
        h = h + checkpoint(lambda x: self.first(x).relu(), x.clone().requires_grad_(), use_reentrant=True)
        return self.output(h)


class ReentrantToy(ExpertsToy):
    name = "reentrant"

    def build_model(self):
        return Reentrant(self.options.features, self.options.hidden, self.options.classes)


def node_reentrant(fabric):
    workload = ReentrantToy(ToyOptions(hidden=9))
    workload.open(workload.prepare(None, None, lambda *_: None))
    try:
        train(fabric, workload, set_up(fabric, workload, "ddp", {"lr": 0.1}), 0, 2)
    except UserError as error:
        return str(error)
    return ""


def test_a_gradient_in_two_parts_is_refused_where_nodes_would_average_the_first_alone():
    assert on_nodes(node_reentrant, 1, timeout_s=30) == [""]
    for line in on_nodes(node_reentrant, 2, timeout_s=30):
        assert "gets its gradient in two parts" in line
