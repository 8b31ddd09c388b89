"""Wide linear layers that plain SGD updates inside the backward pass."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from istbench.methods import wide_layers
from istbench.methods.local_sgd import LocalSGD
from istbench.methods.wide_layers import WideLayers, updates_wide_layers
from istbench.node.step_work import OperationCounter
from istbench.workloads.toy import Toy

RATE = 0.1


@pytest.fixture(autouse=True)
def _small_layers_are_wide(monkeypatch):
    monkeypatch.setattr(wide_layers, "WIDE", 24 * 16)


class Network(nn.Module):
    """Two wide layers and a narrow one; subclasses use the layers otherwise."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 24), nn.Linear(24, 24, bias=False), nn.Linear(24, 3)

    def forward(self, inputs):
        return self.last(F.relu(self.second(F.relu(self.first(inputs)))))


class Tied(Network):
    def forward(self, inputs):
        hidden = F.relu(self.second(F.relu(self.first(inputs))))
        return self.last(F.relu(F.linear(hidden, self.second.weight)))


class Penalised(Network):
    def forward(self, inputs):
        return super().forward(inputs) + self.second.weight.square().mean()


class Checkpointed(Network):
    reentrant = False

    def forward(self, inputs):
        hidden = checkpoint(self.second, F.relu(self.first(inputs)), use_reentrant=self.reentrant)
        return self.last(F.relu(hidden))


class CheckpointedReentrant(Checkpointed):
    reentrant = True


class Differentiated(Network):
    """Its output contains the gradient of another output, as a gradient penalty does."""

    def forward(self, inputs):
        hidden = F.relu(self.first(inputs))
        output = self.last(F.relu(self.second(hidden)))
        (slope,) = torch.autograd.grad(output.sum(), hidden, create_graph=True)
        return output + slope.square().mean()


class Watched(Network):
    def __init__(self):
        super().__init__()
        self.second.weight.register_hook(lambda gradient: 2 * gradient)


def trained(model, *, plain, steps=3, shape=(8,)):
    """`model` after some steps, and the names of parameters with a gradient in the last one."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    layers = WideLayers(model, optimizer, plain=plain)
    for _ in range(steps):
        inputs = torch.randn(*shape, 16, generator=generator)
        optimizer.zero_grad()
        with layers:
            loss = model(inputs).square().mean()
        layers.backward(loss)
        optimizer.step()
    return {name for name, parameter in model.named_parameters() if parameter.grad is not None}


NARROW = {"first.bias", "last.weight", "last.bias"}


@pytest.mark.parametrize(
    ("kind", "shape", "with_gradient"),
    [
        (Network, (8,), NARROW),
        (Network, (4, 2), NARROW),
        (Tied, (8,), NARROW | {"second.weight"}),
        (Penalised, (8,), NARROW | {"second.weight"}),
        (Checkpointed, (8,), NARROW | {"second.weight"}),
        (CheckpointedReentrant, (8,), NARROW | {"second.weight"}),
        (Watched, (8,), NARROW | {"second.weight"}),
        (Differentiated, (8,), NARROW | {"second.weight"}),
    ],
)
def test_steps_are_those_of_plain_sgd(kind, shape, with_gradient):
    torch.manual_seed(0)
    model = kind()
    expected = copy.deepcopy(model)
    if kind is Watched:  # copies have no hooks of the original
        expected = kind()
        expected.load_state_dict(model.state_dict())
    assert trained(expected, plain=False, shape=shape) == {name for name, _ in model.named_parameters()}
    assert trained(model, plain=True, shape=shape) == with_gradient
    for own, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_half_precision_keeps_its_gradients():
    torch.manual_seed(0)
    model, layers_of = Network(), Network()
    layers_of.load_state_dict(model.state_dict())
    for one, plain in ((model, True), (layers_of, False)):
        layers = WideLayers(one, torch.optim.SGD(one.parameters(), lr=RATE), plain=plain)
        with layers, torch.autocast("cpu", dtype=torch.bfloat16):
            loss = one(torch.ones(8, 16)).float().square().mean()
        layers.backward(loss)
    assert torch.equal(model.second.weight.grad, layers_of.second.weight.grad)


def test_a_product_that_updates_counts_as_one_that_computes_a_gradient():
    counts = []
    for plain in (False, True):
        model = Network()
        with OperationCounter() as counter:
            trained(model, plain=plain, steps=1)
        counts.append((counter.operations, counter.counted().shapes))
    assert counts[0][0] == counts[1][0]
    assert set(counts[0][1]) == set(counts[1][1])


def test_other_rules_keep_their_gradients():
    workload = Toy()

    def updates(**options):
        chosen = LocalSGD.Options(**options)
        return updates_wide_layers(chosen.build(Network().parameters()), chosen, workload)

    assert updates()
    for options in ({"momentum": 0.9}, {"weight_decay": 0.1}, {"clip": 1.0}, {"optimizer": "adam"}):
        assert not updates(**options)
    workload.compiles = True
    assert not updates()


def test_the_rate_follows_an_optimizer_whose_state_was_loaded():
    """torch's optimizers have other groups then, so a resumed run with a schedule would keep its first rate."""
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    layers = WideLayers(model, optimizer, plain=True)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.param_groups[0]["lr"] = 0.0
    before = copy.deepcopy(model)
    with layers:
        loss = model(torch.ones(8, 16)).square().mean()
    layers.backward(loss)
    optimizer.step()
    assert all(map(torch.equal, model.parameters(), before.parameters()))


def test_a_compiled_model_is_left_alone():
    model = Network()
    model.compile()
    assert not WideLayers(model, torch.optim.SGD(model.parameters(), lr=RATE), plain=True)._groups
