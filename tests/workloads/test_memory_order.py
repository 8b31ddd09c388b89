"""BatchNorm of few channels: the same function, of contiguous images."""

import copy

import pytest
import torch
from torch import nn

from istbench.workloads.memory_order import make_narrow_norms_contiguous


@pytest.mark.parametrize(
    ("channels", "copied"), [(2, True), (7, True), (8, False), (12, True), (16, False), (25, False)]
)
def test_a_norm_of_few_channels_gives_the_same_from_contiguous_images(channels, copied):
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(channels)
    quickened = copy.deepcopy(norm)
    make_narrow_norms_contiguous(quickened)
    images = torch.randn(5, channels, 6, 4).to(memory_format=torch.channels_last)
    theirs = [images.clone().requires_grad_() for _ in range(2)]
    seen = [layer(mine) for layer, mine in zip((norm, quickened), theirs, strict=True)]
    torch.testing.assert_close(seen[1], seen[0])
    for out in seen:
        (out**3).sum().backward()
    torch.testing.assert_close(theirs[1].grad, theirs[0].grad)
    torch.testing.assert_close(quickened.running_var, norm.running_var)
    assert seen[1].is_contiguous() == copied


def test_contiguous_images_are_not_copied():
    seen = []
    norm = nn.BatchNorm2d(2)
    make_narrow_norms_contiguous(norm)
    norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].data_ptr()))
    images = torch.randn(3, 2, 4, 4)
    norm(images)
    assert seen == [images.data_ptr()]


def test_a_subnets_norm_counts_by_the_channels_it_has():
    norm = nn.BatchNorm2d(32)
    for name in ("weight", "bias"):
        setattr(norm, name, nn.Parameter(torch.ones(2)))
    norm.running_mean, norm.running_var = torch.zeros(2), torch.ones(2)
    make_narrow_norms_contiguous(norm)
    assert norm(torch.randn(3, 2, 4, 4).to(memory_format=torch.channels_last)).is_contiguous()
