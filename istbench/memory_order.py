"""Memory order of tensors: contiguous, or channels last for images and filters."""

import torch
from torch import Tensor


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
