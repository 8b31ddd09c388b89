"""Rows with large outputs for all samples."""

import numpy as np

from istbench.methods.slide.threads import Threads, kernel

_ROWS_AT_ONCE = 64


def common_rows(
    weight: np.ndarray, bias: np.ndarray, hidden: np.ndarray, count: int, threads: Threads
) -> np.ndarray:
    """The `count` rows with the largest outputs for the mean of `hidden`, sorted, int32; of equals, the first.

    Hidden vectors after ReLU are similar, so they share most of their largest outputs, above all early in training.

    Args:
        weight: float32 [n, width]. bias: float32 [n]. hidden: float32 [b, width].
    """
    mean, outputs = hidden.mean(axis=0), np.empty(len(weight), np.float32)
    threads.ranges(
        lambda first, last: _outputs(weight, bias, mean, first, last, outputs), len(weight), _ROWS_AT_ONCE
    )
    return largest(outputs, count).astype(np.int32)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` largest of `values` (float32 [n]), sorted, int64; of equals, the first."""
    count = min(count, len(values))
    if count == 0:
        return np.empty(0, np.int64)
    least = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


@kernel
def _outputs(
    weight: np.ndarray, bias: np.ndarray, vector: np.ndarray, first: int, last: int, outputs: np.ndarray
) -> None:
    """Fill in the outputs of rows `first` to `last` for `vector`."""
    for row in range(first, last):
        product = np.float32(0)
        for entry in range(weight.shape[1]):
            product += weight[row, entry] * vector[entry]
        outputs[row] = product + bias[row]
