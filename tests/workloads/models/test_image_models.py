"""The image networks: their sizes, and the channels that are dealt out."""

import pytest
import torch
from torch import nn

from istbench.workloads.models.resnet import cifar_resnet18, resnet_groups
from istbench.workloads.models.vgg import vgg12, vgg_groups
from istbench.workloads.neuron_groups.groups import Slot, permute_units, validate_groups


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_resnet18_has_its_published_number_of_parameters():
    with torch.device("meta"):
        assert parameters(cifar_resnet18(64, 10)) == 11_173_962


def test_vgg12_has_twelve_layers_with_weights():
    with torch.device("meta"):
        layers = [m for m in vgg12(64, 1000, 224).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 12
    assert layers[9].weight.shape == (4096, 512 * 7 * 7)


@pytest.mark.parametrize("resolution", [32, 33, 63, 64, 96])
def test_vgg12_takes_images_of_any_resolution(resolution):
    assert vgg12(2, 5, resolution)(torch.randn(2, 3, resolution, resolution)).shape == (2, 5)


@pytest.mark.parametrize("pixels", [32, 40])
def test_resnet18_takes_images_of_any_size(pixels):
    assert cifar_resnet18(2, 5)(torch.randn(2, 3, pixels, pixels)).shape == (2, 5)


NETWORKS = {
    "resnet18": (lambda: cifar_resnet18(3, 4), resnet_groups, 32),
    "resnet18 of 48 pixels": (lambda: cifar_resnet18(3, 4), resnet_groups, 48),
    "vgg12": (lambda: vgg12(2, 4, 32), vgg_groups, 32),
    "vgg12 of 64 pixels": (lambda: vgg12(2, 4, 64), vgg_groups, 64),
    "vgg12 of 100 pixels": (lambda: vgg12(1, 4, 100), vgg_groups, 100),
}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", NETWORKS)
def test_permuting_a_group_leaves_the_function_unchanged(name, training):
    build, groups_of, pixels = NETWORKS[name]
    torch.manual_seed(5)
    model = build().double().train(training)
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data.uniform_(-0.5, 1.0).add_(0.0 if tensor.dim() > 1 else 0.6)
    inputs = torch.randn(3, 3, pixels, pixels, dtype=torch.float64)
    expected = model(inputs)
    assert expected.std() > 1e-3
    for group in groups_of(model):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        units = torch.randperm(group.size)
        permute_units(model, group, torch.empty_like(units).index_copy_(0, units, units.roll(1)))  # moves them all
        if group.size > 1:
            assert any(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        torch.testing.assert_close(model(inputs), expected, rtol=1e-6, atol=1e-9)


def layers_in_no_group(model, groups):
    indexed = {slot.tensor for group in groups for slot in group.slots}
    layers = (name for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear))
    return [name for name in layers if f"{name}.weight" not in indexed]


def test_resnet18_is_whole_but_for_the_inner_channels_of_its_blocks():
    model = cifar_resnet18(3, 4)
    groups = resnet_groups(model)
    validate_groups(model, groups)
    assert [group.size for group in groups] == [3, 3, 6, 6, 12, 12, 24, 24]
    assert {len(group.slots) for group in groups} == {6}  # conv1, four of norm1, conv2
    shortcuts = [f"block{stage}_1.shortcut.conv" for stage in (2, 3, 4)]
    assert layers_in_no_group(model, groups) == ["stem", *shortcuts, "output"]


def test_every_hidden_unit_of_vgg12_is_dealt_out():
    model = vgg12(2, 4, 64)
    groups = vgg_groups(model)
    validate_groups(model, groups)
    assert [group.size for group in groups] == [2, 4, 8, 8, 16, 16, 16, 16, 16, 128, 128]
    assert groups[8].slots[-1] == Slot("linear1.weight", 1, 4)
    assert layers_in_no_group(model, groups) == []
