"""Sparse points and their labels: arrays on disk or in chunks, and batches of tensors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Sparse rows as numpy arrays: row i holds the entries from `ends[i - 1]` (0 for the first row) to `ends[i]`.

    ends: int64 [n]. indices: columns, int32. values: float32, or None if all are one.
    """

    ends: np.ndarray
    indices: np.ndarray
    values: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ends)

    def take(self, chosen: np.ndarray) -> "Rows":
        """A copy of rows `chosen` (int64), in that order."""
        starts = np.where(chosen > 0, self.ends[chosen - 1], 0)
        lengths = self.ends[chosen] - starts
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
        return Rows(ends, self.indices[places], None if self.values is None else self.values[places])


@dataclass(frozen=True)
class Points:
    """Points: rows of features with values, and the same number of rows of labels."""

    features: Rows
    labels: Rows

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: np.ndarray) -> "Points":
        """A copy of points `chosen` (int64), in that order."""
        return Points(self.features.take(chosen), self.labels.take(chosen))


@dataclass(frozen=True)
class SparseBatch:
    """Sparse rows of a minibatch, as tensors. It has the tensor operations that methods use on a batch.

    offsets: the start of each row, and the end of the last, int64 [b + 1]. indices: columns, int64 [entries].
    values: float32 [entries], or None if all are one. columns: number of columns.
    """

    offsets: Tensor
    indices: Tensor
    values: Tensor | None
    columns: int

    @classmethod
    def of(cls, rows: Rows, columns: int) -> "SparseBatch":
        """`rows` as tensors."""
        offsets = np.concatenate([[0], rows.ends])
        values = None if rows.values is None else torch.from_numpy(rows.values)
        return cls(torch.from_numpy(offsets), torch.from_numpy(rows.indices.astype(np.int64)), values, columns)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), self.columns))

    def dim(self) -> int:
        return 2

    def to(self, *where: Any, **how: Any) -> "SparseBatch":
        """A copy on another device, like `Tensor.to`."""
        values = None if self.values is None else self.values.to(*where, **how)
        return SparseBatch(self.offsets.to(*where, **how), self.indices.to(*where, **how), values, self.columns)

    def chunk(self, count: int) -> "list[SparseBatch]":
        """At most `count` batches of consecutive rows, like `Tensor.chunk`."""
        return [self._slice(int(rows[0]), len(rows)) for rows in torch.arange(len(self)).chunk(count)]

    def _slice(self, first: int, count: int) -> "SparseBatch":
        offsets = self.offsets[first : first + count + 1]
        entries = slice(int(offsets[0]), int(offsets[-1]))
        values = None if self.values is None else self.values[entries]
        return SparseBatch(offsets - offsets[0], self.indices[entries], values, self.columns)

    def equal(self, other: object) -> bool:
        """Whether `other` has the same rows, like `Tensor.equal`."""
        if not isinstance(other, SparseBatch) or self.columns != other.columns:
            return False
        same = self.offsets.equal(other.offsets) and self.indices.equal(other.indices)
        if self.values is None or other.values is None:
            return same and self.values is other.values
        return same and self.values.equal(other.values)

    def row_of_entry(self) -> Tensor:
        """The row of every entry, int64 [entries]."""
        rows = torch.arange(len(self), device=self.offsets.device)
        return rows.repeat_interleave(self.offsets.diff(), output_size=len(self.indices))
