"""Initial values of what one node holds, made without ever making a full tensor."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from istbench.subnets.groups import expand_units
from istbench.subnets.layout import CutTensor, Layout, subnet_index
from istbench.subnets.partition import Partition

Rows = Callable[[str, Tensor | None], Tensor]
"""rows(name, indices): initial values of those rows (dimension 0; None for all) of a full tensor."""

_CHUNK_VALUES = 1 << 24


def subnet_values(tensor: CutTensor, partition: Partition, node: int, rows: Rows) -> Tensor:
    """Initial values of `node`'s subnet of `tensor`."""
    index = {axis.dim: i for axis, i in zip(tensor.axes, subnet_index(tensor, partition, node), strict=True)}
    wanted = index.pop(0, torch.arange(tensor.shape[0]))
    pieces = []
    for chunk in _chunks(wanted, tensor):
        piece = rows(tensor.name, chunk)
        for dim, columns in index.items():
            piece = piece.index_select(dim, columns)
        pieces.append(piece)
    return torch.cat(pieces)


def home_values(layout: Layout, home: Partition, node: int, rows: Rows) -> dict[str, Tensor]:
    """Initial values of `node`'s home shards, by tensor name."""
    shards = {}
    for tensor in layout.cut:
        if not tensor.needs_home:
            continue
        first = tensor.axes[0]
        units = expand_units(home[first.group].units[node], first.block)
        if first.dim == 0:
            shards[tensor.name] = rows(tensor.name, units)
        else:
            pieces = [
                rows(tensor.name, chunk).index_select(first.dim, units)
                for chunk in _chunks(torch.arange(tensor.shape[0]), tensor)
            ]
            shards[tensor.name] = torch.cat(pieces)
    return shards


def _chunks(rows: Tensor, tensor: CutTensor) -> Iterator[Tensor]:
    values_a_row = max(1, tensor.shape.numel() // max(1, tensor.shape[0]))
    return iter(rows.split(max(1, _CHUNK_VALUES // values_a_row)))
