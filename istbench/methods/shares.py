"""The full model put together from the nodes' shares of it, a block at a time."""

from collections.abc import Mapping

from torch import Tensor

from istbench.fabric import Fabric
from istbench.subnets.layout import CutTensor, Layout, product_shape, subnet_index, write
from istbench.subnets.partition import Partition
from istbench.subnets.pieces import Piece, Span, piece_of


class Shares:
    """What this node has of the full model: `subnet` of `partition`, shards of `home`, and what is not dealt.

    Args:
        subnet, shards: tensors by name. whole: those that are in no subnet, of the values that the full model has.
    """

    def __init__(
        self,
        layout: Layout,
        partition: Partition,
        home: Partition,
        fabric: Fabric,
        *,
        subnet: Mapping[str, Tensor],
        shards: Mapping[str, Tensor],
        whole: Mapping[str, Tensor],
    ) -> None:
        self._cut = {cut.name: cut for cut in layout.cut}
        self._partition, self._home, self._fabric = partition, home, fabric
        self._subnet, self._shards, self._whole = subnet, shards, whole

    def block(self, name: str, dim: int, first: int, last: int) -> Tensor | None:
        """Entries `first` to `last` (exclusive) along `dim` of tensor `name`, on rank 0; None elsewhere.

        Every node must call it alike. Rank 0 holds the block and one node's piece of it at a time.
        """
        span = Span(dim, first, last)
        if name in self._whole:
            return span.of(self._whole[name]).clone() if self._fabric.rank == 0 else None
        block = None
        if self._fabric.rank == 0:
            block = self._subnet[name].new_empty(span.shape(self._cut[name].shape))
        self.bring(name, span, block)
        return block

    def bring(self, name: str, span: Span, target: Tensor | None) -> None:
        """Fill `target`, on rank 0, with the block at `span` of tensor `name`; every node must call it alike."""
        if name in self._whole:
            if target is not None:
                target.copy_(span.of(self._whole[name]))
            return
        cut = self._cut[name]
        # Home shards first: where a subnet holds an entry, its home has an old value.
        if cut.needs_home:
            self._gather(cut, span, target, at_home=True)
        self._gather(cut, span, target, at_home=False)

    def _gather(self, cut: CutTensor, span: Span, target: Tensor | None, *, at_home: bool) -> None:
        held = (self._shards if at_home else self._subnet)[cut.name].detach()
        pieces = [self._piece(cut, span, node, at_home) for node in range(self._fabric.world_size)]
        shapes = [product_shape(span.shape(cut.shape), piece.axes, piece.index) for piece in pieces]
        mine = pieces[self._fabric.rank].held.of(held).reshape(-1).contiguous()
        sizes = [shape.numel() for shape in shapes]
        for node, values in self._fabric.gather_to_zero(mine, sizes, f"assembling {cut.name}"):
            if target is not None and len(values):
                write(target, pieces[node].axes, pieces[node].index, values.view(shapes[node]))

    def _piece(self, cut: CutTensor, span: Span, node: int, at_home: bool) -> Piece:
        if at_home:
            return piece_of(span, cut.axes[:1], subnet_index(cut, self._home, node)[:1])
        return piece_of(span, cut.axes, subnet_index(cut, self._partition, node))
