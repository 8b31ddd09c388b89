"""Many tensors as one flat buffer, for one message."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.fabric import Fabric
from istbench.fabric.group import Group, Groups
from istbench.methods.footprint import trained
from istbench.methods.weights import weigh
from istbench.workloads.memory_order import flattened, unflattened
from istbench.workloads.neuron_groups.layout import own_vectors

_ALIGNED_ON = ("cuda",)


def floating_tensors(model: nn.Module) -> list[Tensor]:
    """The tensors of `model` that methods average: trained parameters and floating-point buffers.

    Each node keeps the `own_vectors` for itself.
    """
    own = own_vectors(model)
    buffers = (buffer for name, buffer in model.named_buffers() if buffer.is_floating_point() and name not in own)
    return [*trained(model), *buffers]


def is_frozen(tensor: Tensor) -> bool:
    """Whether `tensor` is a parameter that nobody trains: it is the same on all nodes, so it need not travel."""
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad


def by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """`tensors` grouped by dtype, in their order."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


def places(tensor: Tensor) -> int:
    """The values that `tensor` takes up in a flat buffer.

    On a GPU, the next tensor begins at a multiple of 16 bytes. Kernels of cuDNN for channels-last images load 16
    bytes at once: on an H100 they fail with "misaligned address" elsewhere.
    """
    aligned = 16 // tensor.element_size() if tensor.device.type in _ALIGNED_ON else 1
    return -(-tensor.numel() // aligned) * aligned


def flatten_in_place(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Move `tensors` into one flat buffer for each dtype, and make each tensor a view of its places there.

    The tensors stay the same objects, so the optimizers and modules that hold them still work. Zeros fill `places`
    without a value.
    """
    flats = []
    for group in by_dtype(tensors):
        flat = group[0].new_zeros(sum(map(places, group)))
        for tensor, room in zip(group, flat.split([places(tensor) for tensor in group]), strict=True):
            own = room[: tensor.numel()].copy_(flattened(tensor.detach(), tensor))
            tensor.data = unflattened(own, tensor)
        flats.append(flat)
    return flats


class BufferPlaces:
    """The tensors of the buffers of `model`. Its forward pass may put new ones in their place."""

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [(module, name, own) for module in model.modules() for name, own in module._buffers.items()]

    @torch.no_grad()
    def refill(self) -> None:
        """Put the first tensors back, with the values of the new ones.

        Raises:
            UserError: a new one has another shape or type.
        """
        for module, name, own in self._buffers:
            found = module._buffers.get(name)
            if found is own:
                continue
            if found is None or own is None or (found.shape, found.dtype) != (own.shape, own.dtype):
                raise UserError(
                    f"buffer {name} of {type(module).__name__} gets another shape or type in a step, and nodes "
                    "average buffers; keep one shape and type, or use ddp"
                )
            module._buffers[name] = own.copy_(found)


def average(fabric: Fabric | Group | Groups, tensors: Iterable[Tensor], name: str, weight: float = 1.0) -> None:
    """Replace `tensors` by their means over the nodes of `fabric`, with one all-reduce for each dtype.

    weight: of this node's values.
    """
    for group in by_dtype(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        weigh(flat, weight)
        fabric.all_reduce_mean(flat, name)
        for tensor, mean in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
            tensor.copy_(mean.view(tensor.shape))
