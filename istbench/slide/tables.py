"""Hash tables over output rows: of every table the rows, bucket by bucket, as CSR arrays."""

import numpy as np

from istbench.slide.hashing import HashFamily
from istbench.slide.sorting import codes_of_sorted, sort_by_code
from istbench.slide.threads import Threads

NO_LIMIT = np.iinfo(np.int32).max


class Tables:
    """Rows 0 to n - 1 by their codes: every row is in one bucket of each table.

    Attributes:
        rows: int32 [tables, n]; those of bucket c of table t are rows[t, starts[t, c]:starts[t, c + 1]], in order.
        starts: int32 [tables, buckets + 1].
        limit: how many rows of a bucket an active set takes at most. Of a larger bucket it takes a run of so many,
            from a place drawn for every sample, as if the bucket were a ring.
    """

    def __init__(self, rows: np.ndarray, starts: np.ndarray, limit: int = NO_LIMIT) -> None:
        self.rows, self.starts, self.limit = rows, starts, limit

    @classmethod
    def empty(cls, size: int) -> "Tables":
        """No tables over `size` rows."""
        return cls(np.empty((0, size), np.int32), np.empty((0, 2), np.int32))

    @classmethod
    def build(cls, family: HashFamily, weight: np.ndarray, threads: Threads, limit: int | None = None) -> "Tables":
        """Tables of the rows of `weight` (float32 [n, width])."""
        rows = np.empty((family.tables, len(weight)), np.int32)
        starts = np.empty((family.tables, family.buckets + 1), np.int32)
        tables = cls(rows, starts, limit or NO_LIMIT)
        tables.rebuild(family, weight, threads)
        return tables

    def rebuild(self, family: HashFamily, weight: np.ndarray, threads: Threads) -> None:
        """Fill in all tables anew, in their place; `family` may have other functions than before."""
        family.codes(weight, threads, out=self.rows)

        def sort(table: int) -> None:
            sort_by_code(self.rows[table].copy(), self.starts[table], self.rows[table])

        threads.run(sort, len(self.rows))

    def update(self, rows: np.ndarray, codes: np.ndarray, threads: Threads) -> None:
        """Move `rows` (int [m]) to the buckets of their new `codes` (int32 [tables, m]); the others stay.

        Of every table, it takes the codes back out of it and sorts them again: no code is kept between.
        """

        def sort(table: int) -> None:
            own = np.empty(self.rows.shape[1], np.int32)
            codes_of_sorted(self.starts[table], self.rows[table], own)
            own[rows] = codes[table]
            sort_by_code(own, self.starts[table], self.rows[table])

        threads.run(sort, len(self.rows))

    @property
    def bytes(self) -> int:
        """Of all arrays."""
        return int(self.rows.nbytes + self.starts.nbytes)


def tables_bytes(size: int, tables: int, functions: int, bits: int) -> int:
    """Bytes that `tables` tables over `size` rows take, by `functions` functions of `bits` bits each."""
    return 4 * tables * (size + (1 << functions * bits) + 1)
