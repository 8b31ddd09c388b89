"""Sums over units that no normalisation follows, and the factor that a subnet gives them."""

import copy
from dataclasses import replace

import pytest
import torch
from test_discovery import Net
from torch import nn
from torch.nn import functional as F

from istbench.workloads.neuron_groups.discovery import discover_groups
from istbench.workloads.neuron_groups.groups import validate_groups
from istbench.workloads.neuron_groups.layout import build_subnet
from istbench.workloads.neuron_groups.partition import partition_units, units_on

ROWS, IMAGES = (4, 6), (3, 3, 6, 6)


def found(model, *shape):
    x = torch.randn(shape)
    return discover_groups(model, lambda model: model(x)).groups


class After(nn.Module):
    """A hidden layer `inner`, a sum `outer` over its units, then `after`; the result adds the inputs."""

    def __init__(self, after, *, adds=True):
        super().__init__()
        self.inner, self.outer, self.last = nn.Linear(6, 8), nn.Linear(8, 6, bias=False), nn.Linear(6, 3)
        self.after, self.adds = after, adds
        if isinstance(after, nn.Module):
            self.norm = after

    def forward(self, x):
        y = self.after(self.outer(F.silu(self.inner(x))))
        return self.last(x + y if self.adds else y)


def rms(y):
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)


def by_deviation(y):
    mean, deviation = y.mean(-1, keepdim=True), y.std(-1, keepdim=True)
    return (y - mean) / (deviation + 1e-6)


NORMALISED = {
    "batch norm": nn.BatchNorm1d(6),
    "layer norm behind a ReLU": nn.Sequential(nn.ReLU(), nn.LayerNorm(6)),
    "behind another layer": nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)),
    "an RMSNorm in the code": rms,
    "a LayerNorm in the code": by_deviation,
    "a division by the norm": lambda y: F.normalize(y, dim=-1),
    "a larger and a smaller part": lambda y: F.layer_norm(torch.cat([y[:, :3], 2 * y[:, 3:]], -1), (6,)),
}
NOT_NORMALISED = {
    "nothing": lambda y: y,
    "a frozen batch norm": lambda y: F.batch_norm(y, torch.zeros(6), torch.ones(6)),
    "layer norm behind a GELU": lambda y: F.layer_norm(F.gelu(y), (6,)),
    "a gate": lambda y: y * y.sigmoid(),
    "half of it": lambda y: torch.cat([y[:, :3], F.layer_norm(y[:, 3:], (3,))], -1),
    "a maximum with a constant": lambda y: F.layer_norm(y.clamp(min=0.5), (6,)),
    "written in place": lambda y: torch.zeros_like(y).add_(y),
}


@pytest.mark.parametrize("name", NORMALISED)
@pytest.mark.parametrize("adds", [True, False])
def test_a_sum_before_a_normalisation_is_not_scaled(name, adds):
    hidden = found(After(NORMALISED[name], adds=adds), *ROWS)[0]
    assert (hidden.name, hidden.sums) == ("inner", ())


@pytest.mark.parametrize("name", NOT_NORMALISED)
def test_a_sum_that_reaches_the_stream_or_the_result_otherwise_is_scaled(name):
    hidden = found(After(NOT_NORMALISED[name]), *ROWS)[0]
    assert (hidden.name, hidden.sums) == ("inner", ("outer.weight",))


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_normalisation_of_a_stream_comes_too_late(norm_first):
    layer = nn.TransformerEncoderLayer(8, 4, 10, norm_first=norm_first, batch_first=True)
    assert [group.sums for group in found(layer, 5, 3, 8)] == [("self_attn.out_proj.weight",), ("linear2.weight",)]


def test_no_sum_of_a_network_with_batch_norm_is_scaled():
    def network(norm):
        layers = [nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.Conv2d(8, 5, 3, groups=1), norm(5), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(20, 3))

    assert [group.sums for group in found(network(nn.BatchNorm2d), *IMAGES)] == [(), ()]
    plain = found(network(lambda _: nn.Identity()), *IMAGES)
    assert [group.sums for group in plain] == [("3.weight",), ("7.weight",)]


def test_a_factor_in_the_code_of_the_model_is_proved_and_not_doubled():
    def forward(net, x):
        hidden = F.gelu(net.inner(x))
        return net.outer(hidden * (8 / hidden.shape[-1]))

    model = Net(forward, inner=nn.Linear(6, 8), outer=nn.Linear(8, 3))
    (group,) = found(model, *ROWS)
    assert (group.sums, group.scales_itself) == (("outer.weight",), True)
    assert not cut(model, group).outer._forward_pre_hooks


def test_a_sum_without_a_layer_of_its_own_stays_as_it_is():
    inner, outer = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(8, 3))
    model = Net(lambda net, x: torch.tanh(x @ net.inner) @ net.outer, inner=inner, outer=outer)
    (group,) = found(model, *ROWS)
    assert (group.sums, group.scales_itself) == ((), False)


def cut(model, group, nodes=2):
    partition = partition_units([group], nodes, seed=0, round_index=0)
    return build_subnet(model, [group], units_on(0, partition), torch.device("cpu"))


def test_a_subnet_scales_its_sums_but_no_bias_and_a_whole_model_nothing():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    (group,) = found(model, *ROWS)
    subnet = copy.deepcopy(cut(model, group, nodes=4))
    for parameter in subnet.parameters():
        nn.init.ones_(parameter)
    inputs = torch.ones(1, 6)
    assert subnet(inputs).tolist() == [[2 * 7 * 4 + 1.0] * 3]
    whole = cut(model, group, nodes=1)
    assert not any(module._forward_pre_hooks for module in whole.modules())


def test_sums_of_a_group_are_among_its_slots():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    (group,) = found(model, *ROWS)
    with pytest.raises(ValueError, match="neuron group '0': '2.bias' of its sums is in no slot"):
        validate_groups(model, [replace(group, sums=("2.bias",))])
