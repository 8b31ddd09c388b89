"""The full model put together from the nodes' shares of it, while units are in flight."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from istbench.methods.shares import Shares
from istbench.subnets.flights import Flights
from istbench.subnets.layout import CutTensor, product_shape, subnet_index, write
from istbench.subnets.pieces import Piece, Span, piece_of, scattered_piece


class StreamedShares(Shares):
    """`Shares` of subnets whose units are in any order, and of what flies.

    Args:
        flights: what is under way, None where nothing is. arrived: by peer, the values of what it moves here.
    """

    def __init__(
        self, *args: Any, flights: Flights | None, arrived: Mapping[int, Sequence[Tensor]], **shares: Any
    ) -> None:
        super().__init__(*args, **shares)
        self._flights, self._arrived = flights, arrived

    def bring(self, name: str, span: Span, target: Tensor | None) -> None:
        super().bring(name, span, target)
        # Last: where units are in flight, their places hold nothing.
        if self._flights is not None and name in self._cut:
            self._gather_flights(self._cut[name], span, target)

    def _piece(self, cut: CutTensor, span: Span, node: int, at_home: bool) -> Piece:
        if at_home:
            return piece_of(span, cut.axes[:1], subnet_index(cut, self._home, node)[:1])
        return scattered_piece(span, cut.axes, subnet_index(cut, self._partition, node))

    def _gather_flights(self, cut: CutTensor, span: Span, target: Tensor | None) -> None:
        nodes = range(self._fabric.world_size)
        pieces = [[piece for _, _, piece in self._arriving(cut, span, node)] for node in nodes]
        shapes = [[product_shape(span.shape(cut.shape), cut.axes, piece.index) for piece in own] for own in pieces]
        mine = [
            piece.held.of(self._arrived[peer][number]).reshape(-1)
            for peer, number, piece in self._arriving(cut, span, self._fabric.rank)
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

    def _arriving(self, cut: CutTensor, span: Span, node: int) -> Iterator[tuple[int, int, Piece]]:
        """What flies to `node` of the block at `span`: from whom, the how many-th of theirs, and its piece."""
        assert self._flights is not None
        for peer in range(self._fabric.world_size):
            for number, move in enumerate(self._flights.moves(peer, node)):
                if move.tensor is cut:
                    yield peer, number, scattered_piece(span, cut.axes, move.index)
