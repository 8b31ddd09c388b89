"""Hash tables over output rows: each table has its rows in the order of their buckets, as CSR arrays."""

import numpy as np

from istbench.methods.slide.hashing import HashFamily
from istbench.methods.slide.threads import Threads, kernel


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
        """No tables over `size` rows."""
        return cls(np.empty((0, size), np.int32), np.empty((0, 2), np.int32))

    @classmethod
    def build(cls, family: HashFamily, weight: np.ndarray, threads: Threads) -> "Tables":
        """Tables of the rows of `weight` (float32 [n, width])."""
        rows = np.empty((family.tables, len(weight)), np.int32)
        starts = np.empty((family.tables, family.buckets + 1), np.int32)
        tables = cls(rows, starts)
        tables.rebuild(family, weight, threads)
        return tables

    def rebuild(self, family: HashFamily, weight: np.ndarray, threads: Threads) -> None:
        """Fill all tables again, in their place; `family` may have other functions than before."""
        family.codes(weight, threads, out=self.rows)

        def sort(table: int) -> None:
            sort_by_code(self.rows[table].copy(), self.starts[table], self.rows[table])

        threads.run(sort, len(self.rows))

    @property
    def bytes(self) -> int:
        """Of all arrays."""
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
