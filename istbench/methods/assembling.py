"""Assembling the full model from the shares of the nodes, a block at a time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from istbench.methods.subnet_share import SubnetShare
from istbench.methods.subnets.exchange import mean_of_owners
from istbench.methods.subnets.streaming import Flights
from istbench.workloads.neuron_groups.groups import named_tensors
from istbench.workloads.neuron_groups.layout import (
    Axis,
    CutTensor,
    build_subnet,
    product_shape,
    subnet_index,
    write,
)
from istbench.workloads.neuron_groups.partition import Partition


@dataclass(frozen=True)
class DimSlice:
    """Entries `first` to `last` (exclusive) along dimension `dim`; of a tensor without dimensions, all of it."""

    dim: int
    first: int
    last: int

    def shape(self, shape: torch.Size) -> torch.Size:
        return torch.Size(self.last - self.first if dim == self.dim else size for dim, size in enumerate(shape))

    def of(self, tensor: Tensor) -> Tensor:
        """The block of `tensor`: a view."""
        return tensor.narrow(self.dim, self.first, self.last - self.first) if tensor.dim() else tensor


@dataclass(frozen=True)
class Places:
    """Entries at `places` along dimension `dim`."""

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

    The holder has the product of `index`, in any order, along `axes`, and all entries of other dimensions.
    """
    held: DimSlice | Places = span
    within = list(index)
    for number, axis in enumerate(axes):
        if axis.dim == span.dim:
            places = ((within[number] >= span.first) & (within[number] < span.last)).nonzero().reshape(-1)
            within[number] = within[number][places] - span.first
            first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
            run = last - first == len(places)
            held = DimSlice(span.dim, first, last) if run else Places(span.dim, places)
    return Piece(held, axes, within)


class ModelAssembler:
    """Assembles the full model from the shares of all nodes: subnets in `partition`, and home shards.

    Args:
        share: the share of this node. whole: tensors that no partition cuts, with their values in the full model.
        averaged: whether all owners of an entry have the same value of it. The mean of p of them may differ.
        flights: the wave of units in flight, None if there is none; then the units of a subnet are in any order.
        arrived: by peer, the values that it sends here.
    """

    def __init__(
        self,
        share: SubnetShare,
        partition: Partition,
        whole: Mapping[str, Tensor],
        *,
        averaged: bool,
        flights: Flights | None = None,
        arrived: Mapping[int, Sequence[Tensor]] | None = None,
    ) -> None:
        self._cut = {cut.name: cut for cut in share.layout.cut}
        self._partition, self._home, self._fabric = partition, share.home_partition, share.fabric
        self._subnet, self._whole, self._averaged = share.tensors, whole, averaged
        self._shards = {name: shards[0] for name, shards in share.home.items()}
        self._flights, self._arrived = flights, arrived or {}

    def assembled(self, model: nn.Module) -> nn.Module | None:
        """The full model on rank 0, None elsewhere. `model` has its shapes, on the meta device."""
        full = build_subnet(model, (), {}, self._fabric.device) if self._fabric.rank == 0 else None
        targets = {} if full is None else named_tensors(full)
        for name, tensor in named_tensors(model).items():
            self.bring(name, DimSlice(0, 0, len(tensor) if tensor.dim() else 1), targets.get(name))
        return full

    def block(self, name: str, dim: int, first: int, last: int) -> Tensor | None:
        """Entries `first` to `last` (exclusive) along `dim` of tensor `name`, on rank 0; None elsewhere.

        Every node must make the same call. Rank 0 holds the block and one node's piece of it at a time.
        """
        span = DimSlice(dim, first, last)
        if name in self._whole:
            return span.of(self._whole[name]).clone() if self._fabric.rank == 0 else None
        block = None
        if self._fabric.rank == 0:
            block = self._subnet[name].new_empty(span.shape(self._cut[name].shape))
        self.bring(name, span, block)
        return block

    def bring(self, name: str, span: DimSlice, target: Tensor | None) -> None:
        """Fill `target`, on rank 0, with the block at `span` of tensor `name`; all nodes make the same call."""
        if name in self._whole:
            if target is not None:
                target.copy_(span.of(self._whole[name]))
            return
        cut = self._cut[name]
        # Home shards first: the home of an entry in a subnet has an old value of it.
        if name in self._shards:
            self._gather(cut, span, target, at_home=True)
        if self._averaged or self._partition[cut.axes[0].group].coverage == 1:
            self._gather(cut, span, target, at_home=False)
        else:
            self._gather_means(cut, span, target)
        # Last: the places of units in flight hold no values.
        if self._flights is not None:
            self._gather_flights(self._flights, cut, span, target)

    def _gather(self, cut: CutTensor, span: DimSlice, target: Tensor | None, *, at_home: bool) -> None:
        for piece, values in self._gathered(cut, span, at_home=at_home):
            if target is not None:
                write(target, piece.axes, piece.index, values)

    def _gather_means(self, cut: CutTensor, span: DimSlice, target: Tensor | None) -> None:
        """Fill the entries of `target` that nodes own with the means over their owners."""
        gathered = self._gathered(cut, span, at_home=False)
        parts = ((piece.axes, piece.index, values) for piece, values in gathered)
        if target is None:
            next(parts, None)  # send this node's values
        else:
            target.copy_(mean_of_owners(target, parts, target.dtype))

    def _gathered(self, cut: CutTensor, span: DimSlice, *, at_home: bool) -> Iterator[tuple[Piece, Tensor]]:
        """The pieces of all nodes in the block at `span`, with their values on rank 0; nothing elsewhere."""
        held = (self._shards if at_home else self._subnet)[cut.name].detach()
        pieces = [self._piece(cut, span, node, at_home) for node in range(self._fabric.world_size)]
        shapes = [product_shape(span.shape(cut.shape), piece.axes, piece.index) for piece in pieces]
        mine = pieces[self._fabric.rank].held.of(held).reshape(-1).contiguous()
        sizes = [shape.numel() for shape in shapes]
        for node, values in self._fabric.gather_to_zero(mine, sizes, f"assembling {cut.name}"):
            if len(values):
                yield pieces[node], values.view(shapes[node])

    def _piece(self, cut: CutTensor, span: DimSlice, node: int, at_home: bool) -> Piece:
        if at_home:
            return piece_of(span, cut.axes[:1], subnet_index(cut, self._home, node)[:1])
        return piece_of(span, cut.axes, subnet_index(cut, self._partition, node))

    def _gather_flights(self, flights: Flights, cut: CutTensor, span: DimSlice, target: Tensor | None) -> None:
        nodes = range(self._fabric.world_size)
        pieces = [[piece for _, _, piece in _arriving(flights, cut, span, node, nodes)] for node in nodes]
        shapes = [[product_shape(span.shape(cut.shape), cut.axes, piece.index) for piece in own] for own in pieces]
        mine = [
            piece.held.of(self._arrived[peer][number]).reshape(-1)
            for peer, number, piece in _arriving(flights, cut, span, self._fabric.rank, nodes)
        ]
        flat = torch.cat([self._subnet[cut.name].new_empty(0), *mine])
        sizes = [sum(shape.numel() for shape in own) for own in shapes]
        for node, values in self._fabric.gather_to_zero(flat, sizes, f"assembling {cut.name}"):
            if target is None:
                continue
            parts = values.split([shape.numel() for shape in shapes[node]])
            for piece, shape, part in zip(pieces[node], shapes[node], parts, strict=True):
                if part.numel():
                    write(target, piece.axes, piece.index, part.view(shape))


def _arriving(
    flights: Flights, cut: CutTensor, span: DimSlice, node: int, peers: Iterable[int]
) -> Iterator[tuple[int, int, Piece]]:
    """The moves to `node` in the block at `span`: sender, number among its moves, and piece."""
    for peer in peers:
        for number, move in enumerate(flights.moves(peer, node)):
            if move.tensor is cut:
                yield peer, number, piece_of(span, cut.axes, cut.index(move.units))
