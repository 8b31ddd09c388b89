"""Sizes of the image networks."""

import pytest
import torch
from torch import nn

from istbench.errors import UserError
from istbench.workloads.models.resnet import cifar_resnet18
from istbench.workloads.models.vgg import vgg12


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_resnet18_has_its_published_number_of_parameters() -> None:
    with torch.device("meta"):
        assert parameters(cifar_resnet18(64, 10)) == 11_173_962


def test_vgg12_has_twelve_layers_with_weights() -> None:
    with torch.device("meta"):
        layers = [m for m in vgg12(64, 1000, 224).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 12
    assert layers[9].weight.shape == (4096, 512 * 7 * 7)


@pytest.mark.parametrize("resolution", [32, 33, 63, 64, 96])
def test_vgg12_takes_images_of_any_resolution(resolution: int) -> None:
    assert vgg12(2, 5, resolution)(torch.randn(2, 3, resolution, resolution)).shape == (2, 5)


@pytest.mark.parametrize("pixels", [32, 40])
def test_resnet18_takes_images_of_any_size(pixels: int) -> None:
    assert cifar_resnet18(2, 5)(torch.randn(2, 3, pixels, pixels)).shape == (2, 5)


def test_a_resolution_that_leaves_no_pixel_is_refused() -> None:
    with pytest.raises(UserError, match="at least 32, not 31"):
        vgg12(8, 10, 31)
