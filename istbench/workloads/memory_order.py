"""Memory order of tensors: contiguous, or channels last for images and filters."""

from typing import Any

import torch
from torch import Tensor, nn

_VECTOR = 8  # float32 values that a CPU with AVX2 takes at once
_MANY_CHANNELS = 3 * _VECTOR


def channels_last(tensor: Tensor) -> bool:
    """Whether `tensor`, images or filters [n, channels, height, width], has channels last in memory."""
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return last and not tensor.is_contiguous()


def memory_format(tensor: Tensor) -> torch.memory_format:
    """The memory format of `tensor`: channels last, or contiguous."""
    return torch.channels_last if channels_last(tensor) else torch.contiguous_format


def flattened(tensor: Tensor, like: Tensor) -> Tensor:
    """The elements of `tensor` in the memory order of `like`, which has the same shape.

    A view if `tensor` has that order, else a copy.
    """
    return (tensor.permute(0, 2, 3, 1) if channels_last(like) else tensor).reshape(-1)


def unflattened(flat: Tensor, like: Tensor) -> Tensor:
    """The inverse of `flattened`, a view of `flat`."""
    if not channels_last(like):
        return flat.view(like.shape)
    count, channels, height, width = like.shape
    return flat.view(count, height, width, channels).permute(0, 3, 1, 2)


def make_narrow_norms_contiguous(model: nn.Module) -> None:
    """Let each BatchNorm of few channels work on a contiguous copy of channels-last images, on a CPU.

    torch takes channels-last images channel by channel where the channels do not fill whole vectors. This takes up
    to ten times as long as the copy and its BatchNorm. The number of channels counts when the layer runs: a subnet
    has fewer than its model. Contiguous images are not copied.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):
            module.register_forward_pre_hook(_contiguous_if_narrow)


def _contiguous_if_narrow(norm: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    images: Tensor = inputs[0]
    channels = images.shape[1]
    narrow = channels < _MANY_CHANNELS and channels % _VECTOR > 0
    return (images.contiguous(), *inputs[1:]) if narrow and images.device.type == "cpu" else inputs
