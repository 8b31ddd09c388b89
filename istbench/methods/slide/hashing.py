"""Families of locality-sensitive hash functions: near vectors are likely to have the same code."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from istbench.methods.slide.threads import Threads


class HashFamily(ABC):
    """`functions` (K) hash functions for each of `tables` (L), drawn from a seed, over vectors of `width` entries.

    A function's value has `bits` bits. A table's code joins the values of its functions, the first in the highest
    place. Without functions every vector has the code 0. The first tables do not depend on the number of tables,
    except for the values that empty bins of DWTA borrow.
    """

    name: ClassVar[str]

    def __init__(self, width: int, functions: int, tables: int, bits: int) -> None:
        if functions * bits > MOST_BITS:
            raise ValueError(f"a code of {functions} times {bits} bits is too long")
        self.width, self.functions, self.tables, self.bits = width, functions, tables, bits

    @property
    def buckets(self) -> int:
        """The number of possible codes."""
        return 1 << self.functions * self.bits

    def codes(self, vectors: np.ndarray, threads: Threads, out: np.ndarray | None = None) -> np.ndarray:
        """The code of every vector (float32 [n, width]) in every table: int32 [tables, n], each below `buckets`.

        A vector's codes do not depend on the others.
        """
        if vectors.dtype != np.float32 or vectors.shape[1:] != (self.width,):
            raise ValueError(f"expected float32 vectors [n, {self.width}], not {vectors.dtype} {vectors.shape}")
        codes = np.empty((self.tables, len(vectors)), np.int32) if out is None else out
        if self.functions == 0:
            codes[:] = 0
        else:
            self._hash(np.ascontiguousarray(vectors), codes, threads)
        return codes

    @abstractmethod
    def _hash(self, vectors: np.ndarray, codes: np.ndarray, threads: Threads) -> None:
        """Fill in `codes`."""


MOST_BITS = 30
"""Of a code, which is an int32."""

Family = Callable[[int, int, int, int], HashFamily]
"""A class of `HashFamily`: called with width, functions, tables, seed."""
