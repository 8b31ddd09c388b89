"""The entries of a block of the full model on one node. Pure: every node derives them for any other."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from istbench.workloads.neuron_groups.layout import Axis


@dataclass(frozen=True)
class DimSlice:
    """Entries `first` to `last` (exclusive) along dimension `dim`; of a tensor without dimensions, all of it."""

    dim: int
    first: int
    last: int

    def shape(self, shape: torch.Size) -> torch.Size:
        """Shape of the block at this span of a tensor of `shape`."""
        return torch.Size(self.last - self.first if dim == self.dim else size for dim, size in enumerate(shape))

    def of(self, tensor: Tensor) -> Tensor:
        """The block of `tensor`: a view."""
        return tensor.narrow(self.dim, self.first, self.last - self.first) if tensor.dim() else tensor


@dataclass(frozen=True)
class Places:
    """Entries at `places` along dimension `dim`, in any order."""

    dim: int
    places: Tensor

    def of(self, tensor: Tensor) -> Tensor:
        """These entries of `tensor`: a copy."""
        return tensor.index_select(self.dim, self.places.to(tensor.device))


@dataclass(frozen=True)
class Piece:
    """A holder's entries of a block.

    Attributes:
        held: the holder's entries that lie in the block.
        axes, index: the product of indices within the block where these entries belong.
    """

    held: DimSlice | Places
    axes: Sequence[Axis]
    index: list[Tensor]


def piece_of(span: DimSlice, axes: Sequence[Axis], index: Sequence[Tensor]) -> Piece:
    """The entries of a holder in the block at `span` of the full tensor.

    The holder has the product of `index`, in increasing order, along `axes`, and all entries of other dimensions.
    """
    held, within = span, list(index)
    for number, axis in enumerate(axes):
        if axis.dim != span.dim:
            continue
        edges = torch.searchsorted(within[number], torch.tensor([span.first, span.last]))
        held = DimSlice(span.dim, *edges.tolist())
        within[number] = within[number][held.first : held.last] - span.first
    return Piece(held, axes, within)


def scattered_piece(span: DimSlice, axes: Sequence[Axis], index: Sequence[Tensor]) -> Piece:
    """`piece_of` for indices in any order."""
    held: DimSlice | Places = span
    within = list(index)
    for number, axis in enumerate(axes):
        if axis.dim == span.dim:
            inside = (within[number] >= span.first) & (within[number] < span.last)
            held = Places(span.dim, inside.nonzero().reshape(-1))
            within[number] = within[number][inside] - span.first
    return Piece(held, axes, within)
