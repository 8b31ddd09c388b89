"""Which module waits for which parameter, and in which order they are needed."""

import torch
from torch import nn

from istbench.methods.served.usage import usage, watched


def used(model, *inputs):
    names = {parameter: name for name, parameter in model.named_parameters()}
    numbers = {parameter: number for number, parameter in enumerate(names)}
    with watched(model) as seen:
        model(*inputs)
    seen = usage(model, seen, numbers)
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
    with watched(model) as seen:
        model.part(torch.ones(1, 2)) * model.rest
    seen = usage(model, seen, numbers)
    assert seen.ungated == (0,)
    assert [own for _, own in seen.gates] == [(1, 2)]
    assert not model._forward_pre_hooks


class Parent(nn.Module):
    """Reads its parts' parameters by a function, before it calls one of them, and one that it never calls."""

    def __init__(self):
        super().__init__()
        self.early = nn.Linear(2, 2)
        self.middle = nn.Sequential(nn.Linear(2, 2))
        self.late = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        x = self.middle(x.to(self.early.weight.dtype))
        return self.late(self.early(torch.einsum("bi,oi->bo", [x, self.late.weight])))


def test_a_parameter_that_is_read_before_its_module_is_called_is_waited_for_by_its_reader_too():
    gates, ungated, order = used(Parent(), torch.ones(1, 2))
    assert gates == [
        ("Parent", ["late.weight"]), ("Linear", ["middle.0.weight", "middle.0.bias"]),
        ("Linear", ["early.weight", "early.bias"]), ("Linear", ["late.weight"]),
    ]  # fmt: skip
    assert ungated == []
    assert order[0] == "late.weight"


class Reader(nn.Module):
    """Reads the weights of a module that is not its own."""

    def __init__(self, of):
        super().__init__()
        self.of = [of]

    def forward(self, x):
        return x @ self.of[0].weight


def test_the_innermost_module_that_reads_first_waits():
    last = nn.Linear(2, 2, bias=False)
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Sequential(Reader(last)), last)
    gates, ungated, _ = used(model, torch.ones(1, 2))
    assert gates == [("Linear", ["0.weight"]), ("Reader", ["2.weight"]), ("Linear", ["2.weight"])]
    assert ungated == []


def test_a_module_that_reads_after_the_owner_was_called_does_not_wait():
    first = nn.Linear(2, 2, bias=False)
    gates, _, _ = used(nn.Sequential(first, Reader(first)), torch.ones(1, 2))
    assert gates == [("Linear", ["0.weight"])]


def test_what_is_read_outside_any_module_before_its_own_is_called_is_waited_for_before_everything():
    model = nn.Linear(2, 2)
    numbers = {parameter: number for number, parameter in enumerate(model.parameters())}
    with watched(model) as seen:
        model(torch.ones(1, 2) * model.bias).sum() + model.weight.sum()
    seen = usage(model, seen, numbers)
    assert seen.ungated == (1,)
    assert [own for _, own in seen.gates] == [(0, 1)]
    assert seen.order() == [1, 0]


def test_what_a_modules_own_hooks_read_is_read_in_it():
    model = nn.Linear(2, 2, bias=False)
    model.register_forward_pre_hook(lambda module, inputs: (inputs[0] * module.weight.sum(),))
    model.register_forward_hook(lambda module, inputs, output: output * module.weight.sum())
    gates, ungated, _ = used(nn.Sequential(model), torch.ones(1, 2))
    assert gates == [("Linear", ["0.weight"])]
    assert ungated == []
    assert len(model._forward_pre_hooks) == len(model._forward_hooks) == 1


def test_parameters_of_a_recurrent_layer_are_seen_in_it():
    gates, ungated, _ = used(nn.Sequential(nn.LSTM(2, 2)), torch.ones(1, 1, 2))
    assert [(name, len(own)) for name, own in gates] == [("LSTM", 4)]
    assert ungated == []
