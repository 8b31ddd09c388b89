"""SHA-256 of weights."""

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from istbench.workloads.base import ReadBlock

_BLOCK_VALUES = 1 << 22


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over the bytes of all parameters and buffers of `model`, in name order."""
    tensors: dict[str, Tensor] = model.state_dict()
    return sha256_of(tensors, blocks_of(tensors))


def sha256_of(tensors: Mapping[str, Tensor], block: ReadBlock) -> str:
    """The same for `tensors`, which may lie on the meta device: `block` reads their values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        for content in content_of(name, tensors[name], block):
            digest.update(content)
    return digest.hexdigest()


def blocks_of(tensors: Mapping[str, Tensor]) -> ReadBlock:
    """A function that reads blocks of `tensors`."""

    def block(name: str, dim: int, first: int, last: int) -> Tensor:
        tensor = tensors[name].detach()
        return tensor.narrow(dim, first, last - first) if tensor.dim() else tensor

    return block


def content_of(name: str, tensor: Tensor, block: ReadBlock) -> Iterator[memoryview]:
    """The bytes of tensor `name` in the order of its rows, some rows at a time; `tensor` gives its shape."""
    length = len(tensor) if tensor.dim() else 1
    rows = max(1, _BLOCK_VALUES * length // max(1, tensor.numel()))
    for first in range(0, length, rows):
        values = block(name, 0, first, min(length, first + rows))
        yield values.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
