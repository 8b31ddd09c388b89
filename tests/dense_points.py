"""Sparse points as a dense matrix, to compare with."""

import torch
from torch import Tensor

from istbench.workloads.extreme_data.points import SparseBatch


def dense(rows: SparseBatch) -> Tensor:
    """The dense matrix of `rows`, float32 [b, columns]."""
    values = torch.ones(len(rows.indices)) if rows.values is None else rows.values
    return torch.zeros(rows.shape).index_put_((rows.row_of_entry(), rows.indices), values, accumulate=True)
