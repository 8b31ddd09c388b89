"""What layers of few channels need to be as fast as they can be."""

from typing import Any

from torch import Tensor, nn

_VECTOR = 8  # float32 values that a CPU with AVX2 takes at once
_WIDE = 3 * _VECTOR


def quicken_thin_norms(model: nn.Module) -> None:
    """Let BatchNorm of few channels, and not whole vectors of them, see contiguous images on a CPU.

    In channels-last order torch goes over such channels one by one, which takes up to ten times what a contiguous
    copy and its BatchNorm take. Images that are contiguous are not copied.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d) and _slow(_channels(module)):
            module.register_forward_pre_hook(_contiguous)


def _slow(channels: int) -> bool:
    return channels < _WIDE and channels % _VECTOR > 0


def _channels(norm: nn.modules.batchnorm._BatchNorm) -> int:
    """Of a subnet's norm, which may be fewer than `num_features`."""
    tensor = norm.weight if norm.weight is not None else norm.running_mean
    return norm.num_features if tensor is None else len(tensor)


def _contiguous(norm: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    images: Tensor = inputs[0]
    return (images.contiguous(), *inputs[1:]) if images.device.type == "cpu" else inputs
