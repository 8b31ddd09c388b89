"""Families of locality-sensitive hash functions: near vectors are likely to have the same code.

A table has the rows of an output layer in the order of their codes, its buckets, as CSR arrays.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from istbench.methods.slide.threads import Threads, kernel


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
        return 1 << self.functions * self.bits

    def codes(self, vectors: np.ndarray, threads: Threads) -> np.ndarray:
        """The code of every vector (float32 [n, width]) in every table: int32 [tables, n], each below `buckets`.

        A vector's codes do not depend on the others.
        """
        if vectors.dtype != np.float32 or vectors.shape[1:] != (self.width,):
            raise ValueError(f"expected float32 vectors [n, {self.width}], not {vectors.dtype} {vectors.shape}")
        codes, whole = np.zeros((self.tables, len(vectors)), np.int32), np.ascontiguousarray(vectors)
        if self.functions:
            threads.ranges(lambda first, last: self._hash(whole, first, last, codes), len(vectors), LANES)
        return codes

    @abstractmethod
    def _hash(self, vectors: np.ndarray, first: int, last: int, codes: np.ndarray) -> None:
        """Fill in the `codes` of vectors `first` to `last` (exclusive)."""


LANES = 64
"""Vectors that a kernel hashes side by side."""

MOST_BITS = 30
"""Of a code, which is an int32."""

Family = Callable[[int, int, int, int], HashFamily]
"""A class of `HashFamily`: called with width, functions, tables, seed."""


class Tables:
    """Rows 0 to n - 1 by their codes: every row is in one bucket of each table.

    Attributes:
        rows: int32 [tables, n]; those of bucket c of table t are rows[t, starts[t, c]:starts[t, c + 1]], in order.
        starts: int32 [tables, buckets + 1].
    """

    def __init__(self, rows: np.ndarray, starts: np.ndarray) -> None:
        self.rows, self.starts = rows, starts

    @classmethod
    def empty(cls, size: int) -> "Tables":
        return cls(np.empty((0, size), np.int32), np.empty((0, 2), np.int32))

    @classmethod
    def build(cls, family: HashFamily, weight: np.ndarray, threads: Threads) -> "Tables":
        """Tables of the rows of `weight` (float32 [n, width])."""
        rows = family.codes(weight, threads)  # until they are sorted
        starts = np.empty((family.tables, family.buckets + 1), np.int32)

        def sort(table: int) -> None:
            sort_by_code(rows[table].copy(), starts[table], rows[table])

        threads.run(sort, family.tables)
        return cls(rows, starts)

    @property
    def bytes(self) -> int:
        return int(self.rows.nbytes + self.starts.nbytes)


def tables_bytes(size: int, tables: int, functions: int, bits: int) -> int:
    """Bytes of `tables` tables over `size` rows, with `functions` functions of `bits` bits each."""
    return 4 * tables * (size + (1 << functions * bits) + 1)


@kernel
def sort_by_code(codes: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> None:
    """Fill `rows` with 0 to n - 1, sorted by code, then by row; bucket c is from starts[c] to starts[c + 1].

    Args:
        codes: int32 [n], from 0 to buckets - 1. starts: int32 [buckets + 1], filled in. rows: int32 [n], filled in.
    """
    starts[:] = 0
    for row in range(len(codes)):
        starts[codes[row] + 1] += 1
    for code in range(1, len(starts)):
        starts[code] += starts[code - 1]
    for row in range(len(codes)):
        place = starts[codes[row]]
        rows[place] = row
        starts[codes[row]] = place + 1
    for code in range(len(starts) - 1, 0, -1):  # every start has moved to where the next one was
        starts[code] = starts[code - 1]
    starts[0] = 0
