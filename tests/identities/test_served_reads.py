"""Parameters that are read elsewhere than in their own module. Functions named `node_*` run on every node."""

import time

import pytest
import torch
import torch.distributed as dist
from late_messages import make_late
from torch import nn
from torch.nn import functional as F

from istbench.base.errors import UserError
from istbench.launch.processes.on_nodes import on_nodes
from istbench.studies.conformance.training import assembled, largest_difference, plain_training, set_up, train
from istbench.workloads.toy import Toy

EXACT = 2e-5  # float32 sums in another order, over some tens of steps
WIDTH = 16


class Borrower(nn.Module):
    """Computes with the weights of a module that is no part of it."""

    def __init__(self, lender):
        super().__init__()
        self.lender = [lender]

    def forward(self, x):
        return torch.tanh(F.linear(x, self.lender[0].weight))


class Early(nn.Module):
    """Its modules' weights are read before those are called: by it, by another module, and by the loss."""

    def __init__(self, features, classes):
        super().__init__()
        self.turn = nn.Linear(features, features)
        self.input = nn.Linear(features, WIDTH)
        self.lent = nn.Linear(WIDTH, WIDTH)
        self.borrower = Borrower(self.lent)
        self.output = nn.Linear(WIDTH, classes)

    def forward(self, x):
        early = F.linear(x, self.input.weight, self.input.bias)
        x = torch.tanh(self.input(x)) + early
        return self.output(self.lent(self.borrower(x)))


class EarlyToy(Toy):
    name = "early"

    def build_model(self):
        return Early(self.options.features, self.options.classes)

    def neuron_groups(self, model):
        return []

    def loss(self, model, batch):
        points, clusters = batch
        return super().loss(model, (F.linear(points, model.turn.weight, model.turn.bias), clusters))


class Fickle(Early):
    """Calls its input layer in its first forward pass alone, and reads its weights in the others."""

    def forward(self, x):
        first, self.begun = not hasattr(self, "begun"), True
        x = self.input(x) if first else F.linear(x, self.input.weight, self.input.bias)
        return self.output(self.lent(self.borrower(x)))


class FickleToy(EarlyToy):
    def build_model(self):
        return Fickle(self.options.features, self.options.classes)


def opened(workload):
    workload.open(workload.prepare(None, None, lambda *_: None))
    return workload


def node_early(fabric, steps):
    """On a network so slow that no new value is there before a forward pass that does not wait for it."""
    make_late(fabric, 0.02)
    workload = opened(EarlyToy())
    differences = []
    for name in ("p3", "parameter_server"):
        method = set_up(fabric, workload, name, {"momentum": 0.9})
        train(fabric, workload, method, 0, steps)
        model = assembled(fabric, method)
        if model is not None:
            wanted = plain_training(workload, method.options, steps, nodes=fabric.world_size)
            differences.append(largest_difference(model, wanted))
    return differences


def test_parameters_that_are_read_before_their_module_is_called_are_waited_for():
    differences = on_nodes(node_early, 2, 8)[0]
    assert len(differences) == 2
    assert max(differences) < EXACT, differences


def node_fickle(fabric):
    train(fabric, opened(FickleToy()), set_up(fabric, opened(FickleToy()), "p3", {}), 0, 2)


def test_a_later_step_that_goes_past_what_waits_is_refused_by_name():
    with pytest.raises(
        UserError, match=r"^input.(bias|weight) was read too early or too late, beside .*train this model by ddp$"
    ):
        on_nodes(node_fickle, 1)


class Detached(nn.Module):
    """Reads the weight of its layer twice. The backward pass needs the first one after it has the gradient."""

    def __init__(self, features, classes):
        super().__init__()
        self.input = nn.Linear(features, 8)
        self.layer = nn.Linear(8, 8)
        self.output = nn.Linear(8, classes)

    def forward(self, x):
        x = F.linear(self.input(x), self.layer.weight.detach())
        x.register_hook(lambda gradient: time.sleep(0.3 * dist.get_rank()))  # on the node that receives values
        return self.output(self.layer(x))


class DetachedToy(Toy):
    def build_model(self):
        return Detached(self.options.features, self.options.classes)


def node_detached(fabric):
    train(fabric, opened(DetachedToy()), set_up(fabric, opened(DetachedToy()), "parameter_server", {}), 0, 2)


def test_values_that_arrive_while_a_backward_pass_needs_the_old_ones_are_refused_by_name():
    with pytest.raises(UserError, match=r"was read too early or too late, .* or read it by detach\(\); train this"):
        on_nodes(node_detached, 2)
