"""Counting sort of rows by their buckets, and back."""

import numpy as np

from istbench.slide.threads import kernel


@kernel
def sort_by_code(codes: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> None:
    """Fill `rows` with 0 to n - 1 by code, and in order within one; bucket c is from starts[c] to starts[c + 1].

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


@kernel
def codes_of_sorted(starts: np.ndarray, rows: np.ndarray, codes: np.ndarray) -> None:
    """Fill `codes` (int32 [n]) with what `sort_by_code` has sorted by."""
    for code in range(len(starts) - 1):
        for place in range(starts[code], starts[code + 1]):
            codes[rows[place]] = code
