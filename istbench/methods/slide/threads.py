"""Compiled kernels on several threads, in blocks that do not depend on the number of threads."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, TypeVar

from istbench.base.jit import jit

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """`function` compiled to run without Python's lock, with its sums in the fastest order.

    The compiler fixes that order.
    """
    return jit(function, nogil=True, fastmath=_SUMS)


def part(function: _Function) -> _Function:
    """`function`, which makes no arrays, for kernels that contain its code: they do little between two calls."""
    return jit(function, allocates=False, forceinline=True, nogil=True, fastmath=_SUMS)


_SUMS = {"reassoc", "contract", "nsz"}


class Threads:
    """Up to `count` threads, the caller's among them, for blocks of work that may run in any order."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._beyond: Callable[[float], None] | None = None
        self._pool = ThreadPoolExecutor(count - 1, "slide") if count > 1 else None

    def telling(self, beyond: Callable[[float], None]) -> "Threads":
        """The same threads, which call `beyond` on the caller's thread after each `run`.

        It gets the CPU seconds by which the busiest thread exceeds the caller. With a core for each thread, the
        caller waited for them and computed nothing.
        """
        told = copy(self)
        told._beyond = beyond
        return told

    def run(self, work: Callable[[int], object], blocks: int) -> None:
        """Call `work(0)` to `work(blocks - 1)`, each once."""
        numbers = iter(range(blocks))  # threads take from it under Python's lock
        others = min(self.count, blocks) - 1
        waiting = [self._pool.submit(_drain, work, numbers) for _ in range(others)] if self._pool else []
        try:
            own = _drain(work, numbers)
        finally:
            for future in waiting:
                future.exception()
        busiest = max((future.result() for future in waiting), default=0.0)
        if self._beyond is not None and busiest > own:
            self._beyond(busiest - own)

    def ranges(self, work: Callable[[int, int], object], length: int, multiple: int = 1) -> None:
        """Call `work(first, last)` for pieces of `range(length)`, cut at multiples of `multiple`."""
        pieces = max(1, min(_PIECES, length // multiple))
        edges = [length * piece // pieces // multiple * multiple for piece in range(pieces)] + [length]
        self.run(lambda piece: work(edges[piece], edges[piece + 1]), pieces)


_PIECES = 64


def _drain(work: Callable[[int], object], numbers: Iterator[int]) -> float:
    """Work on the `numbers`; returns the CPU seconds of this thread."""
    started = time.thread_time()
    for number in numbers:
        work(number)
    return time.thread_time() - started
