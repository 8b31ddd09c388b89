"""The work of a local step: operations, bytes, and the shapes of its largest matrix products."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from istbench.cluster.speed import StepWork

Shape = tuple[int, int, int]
"""Rows, inner size and columns of a matrix product."""

USUAL_SHAPE: Shape = (256, 1024, 1024)
"""Of a minibatch and a layer of a thousand units."""
USUAL_SHAPES: dict[str, Shape] = {"cpu": USUAL_SHAPE, "cuda": (2048, 2048, 2048)}
"""By device, a shape that stands for convolutions. `USUAL_SHAPE` leaves half of a GPU idle."""

_aten = torch.ops.aten
_ALLOCATE_ONLY = {
    _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided,
    _aten._local_scalar_dense, _aten.set_, _aten.resize_,
}  # fmt: skip
# Their largest tensor is a table, of which they touch the rows that their indices name.
_BY_INDEX = {
    _aten.embedding, _aten.embedding_dense_backward, _aten._embedding_bag, _aten._embedding_bag_forward_only,
    _aten._embedding_bag_per_sample_weights_backward, _aten.index, _aten.index_select, _aten.gather,
    _aten.index_put_, _aten._index_put_impl_, _aten.index_add_, _aten.scatter_, _aten.scatter_add_,
}  # fmt: skip
_INDICES = (torch.int64, torch.int32)
_NOT_COMPUTING = ("c10d", "_c10d_functional", "prim", "profiler")


@dataclass(frozen=True)
class CountedStep:
    """The work of one local step. shapes: its largest matrix products, by falling operations in the step."""

    work: StepWork
    shapes: tuple[Shape, ...]


class OperationCounter(TorchDispatchMode):
    """Counts operations and bytes of torch's kernels that run inside it, and the shapes of their matrix products.

    Convolutions stand for products of `USUAL_SHAPE`. torch's own FlopCounterMode registers hooks on the inputs of
    every module, which fail where the user's code calls torch.autograd.grad inside a pass.

    It works on the meta device too.

    An operation reads its inputs and writes its outputs once. Bytes of matrix products and convolutions do not
    count: their speed includes them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operations = self._bytes = 0
        self._shapes: Counter[Shape] = Counter()

    @property
    def operations(self) -> float:
        """Floating-point operations of matrix products and convolutions so far."""
        return float(self._operations)

    def counted(self, gathered: float = 0.0) -> CountedStep:
        """The counts. gathered: as in `StepWork`; torch does not see kernels of a method's own."""
        largest = tuple(shape for shape, _ in self._shapes.most_common())
        work = StepWork(operations=self.operations, bytes=float(self._bytes), gathered=gathered)
        return CountedStep(work, largest)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, FakeTensor) for kind in types):  # torch works out shapes
            return func(*args, **(kwargs or {}))
        if any(kind not in (Tensor, nn.Parameter, nn.Buffer) for kind in types):
            return NotImplemented  # a tensor made of others, whose parts come by here again
        found = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet in flop_registry:
            self._operations += flop_registry[packet](*args, **(kwargs or {}), out_val=found)
            self._count_product(packet, args, found)
        elif not (func.is_view or func.namespace in _NOT_COMPUTING or packet in _ALLOCATE_ONLY):
            tensors = [value for value in tree_leaves((args, kwargs, found)) if isinstance(value, Tensor)]
            self._bytes += _by_index(tensors) if packet in _BY_INDEX else _whole(tensors)
        return found

    def _count_product(self, packet: Any, args: Sequence[Any], found: Any) -> None:
        if packet in (_aten.mm, _aten.addmm):
            left, right = args[-2:]
            self._add((left.shape[0], left.shape[1], right.shape[1]))
        elif packet in (_aten.bmm, _aten.baddbmm):
            left, right = args[-2:]
            self._add((left.shape[0] * left.shape[1], left.shape[2], right.shape[2]))
        elif packet in (_aten.convolution, _aten._convolution):
            # Its kernels work in blocks, as those of a large product do, also where it has few channels.
            self._add(USUAL_SHAPE, found.numel() * args[1][0].numel())

    def _add(self, shape: Shape, products: int | None = None) -> None:
        self._shapes[shape] += math.prod(shape) if products is None else products


def _whole(tensors: Sequence[Tensor]) -> int:
    """Bytes of `tensors`, each once. Rows of sparse ones are read, and read and written in the others."""
    sparse = [tensor for tensor in tensors if tensor.layout == torch.sparse_coo]
    if sparse:
        return 3 * max(map(_bytes, sparse))
    return sum({_address(tensor): _bytes(tensor) for tensor in tensors}.values())


def _by_index(tensors: Sequence[Tensor]) -> int:
    """Bytes of `tensors`, of which the largest is a table."""
    table = max(tensors, key=_bytes)
    others = [tensor for tensor in tensors if _address(tensor) != _address(table)]
    count = max((tensor.numel() for tensor in others if tensor.dtype in _INDICES), default=0)
    row = _bytes(table) // table.shape[0] if table.dim() and table.shape[0] else 0
    return _whole(others) + min(_bytes(table), count * row)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def _bytes(tensor: Tensor) -> int:
    if tensor.layout == torch.sparse_coo:
        return _bytes(tensor._values()) + _bytes(tensor._indices())
    size = tensor.numel() * tensor.element_size()
    return min(size, tensor.untyped_storage().nbytes()) if tensor.layout == torch.strided else size
