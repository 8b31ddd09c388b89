"""Many tensors as one flat buffer, so that they cross the network as one message."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from istbench.memory_order import flattened, unflattened


def floating_tensors(model: nn.Module) -> list[Tensor]:
    """Parameters and floating-point buffers of `model`: what averaging a model means."""
    buffers = (buffer for buffer in model.buffers() if buffer.is_floating_point())
    return [*model.parameters(), *buffers]


def by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """`tensors` in groups of one dtype each, in their order."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


def flatten_in_place(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Move `tensors` into flat buffers, one a dtype, and make each a view of its place there.

    The tensors stay the same objects, so optimizers and modules that hold them go on working.
    """
    flats = []
    for group in by_dtype(tensors):
        flat = torch.cat([flattened(tensor.detach(), tensor) for tensor in group])
        offset = 0
        for tensor in group:
            tensor.data = unflattened(flat[offset : offset + tensor.numel()], tensor)
            offset += tensor.numel()
        flats.append(flat)
    return flats
