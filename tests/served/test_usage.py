"""Which module waits for which parameter, and in which order they are needed."""

import torch
from torch import nn

from istbench.served.usage import called_modules, usage


def used(model, *inputs):
    names = {parameter: name for name, parameter in model.named_parameters()}
    numbers = {parameter: number for number, parameter in enumerate(names)}
    with called_modules(model) as called:
        model(*inputs)
    seen = usage(model, called, numbers)
    by_number = list(names.values())
    gates = [(type(module).__name__, [by_number[k] for k in own]) for module, own in seen.gates]
    return gates, [by_number[k] for k in seen.ungated], [by_number[k] for k in seen.order()]


class Backwards(nn.Module):
    """Its parts are named in another order than they are called; it owns a parameter and has children."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(2, 2)
        self.first = nn.Linear(2, 2, bias=False)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.last(self.first(x) * self.scale)


def test_modules_wait_in_the_order_in_which_they_are_called():
    gates, ungated, order = used(Backwards(), torch.ones(1, 2))
    assert gates == [
        ("Backwards", ["scale"]), ("Linear", ["first.weight"]), ("Linear", ["last.weight", "last.bias"])
    ]  # fmt: skip
    assert ungated == []
    assert order == ["scale", "first.weight", "last.weight", "last.bias"]


def test_parameters_of_a_child_that_is_never_called_are_waited_for_by_its_parent():
    gates, ungated, _ = used(nn.MultiheadAttention(4, 2), *[torch.ones(3, 1, 4)] * 3)
    names = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    assert gates == [("MultiheadAttention", names)]
    assert ungated == []


def test_a_shared_parameter_is_waited_for_by_every_owner_and_needed_first_by_the_first():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    model[2].weight = model[0].weight
    gates, _, order = used(model, torch.ones(1, 2))
    assert gates == [
        ("Linear", ["0.weight"]), ("Linear", ["1.weight", "1.bias"]), ("Linear", ["0.weight"])
    ]  # fmt: skip
    assert order == ["0.weight", "1.weight", "1.bias"]


class CallsOnlyItsPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(2, 2)
        self.rest = nn.Parameter(torch.ones(2))


def test_parameters_of_no_called_module_are_waited_for_before_everything():
    model = CallsOnlyItsPart()
    numbers = {parameter: number for number, parameter in enumerate(model.parameters())}
    with called_modules(model) as called:
        model.part(torch.ones(1, 2)) * model.rest
    seen = usage(model, called, numbers)
    assert seen.ungated == (0,)
    assert [own for _, own in seen.gates] == [(1, 2)]
    assert not model._forward_pre_hooks
