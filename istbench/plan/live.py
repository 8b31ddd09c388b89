"""Bytes that are alive while something is computed, on the meta device too, where nothing is allocated."""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the memory of what operations inside return, from when it is made to when nothing refers to it.

    What an operation's kernel takes for its own time is not seen.

    Args:
        known: tensors that were there before, and do not count.

    Attributes:
        now: bytes alive. peak: the most so far.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`, and count what it made."""
        made = func(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, Tensor):
                self._count(value)
        return made

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._end, storage._cdata, storage.nbytes())

    def _end(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
