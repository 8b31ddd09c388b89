"""Active sets by row instead of by sample: the samples that use each row."""

from dataclasses import dataclass

import numpy as np

from istbench.methods.slide.active import ActiveSets, Labels
from istbench.methods.slide.threads import kernel

BLOCKS = 16
"""Blocks of a pass over all pairs. Their number is fixed for any number of threads, because sums depend on it."""


@dataclass(frozen=True)
class Pairs:
    """The pairs of an active row and a sample that uses it, sorted by row, and by sample within a row.

    rows: int32 [m], the rows that samples use, sorted. starts: int32 [m + 1]; the pairs of rows[i] are those from
    starts[i] to starts[i + 1]. samples: int32 [pairs]. true: int32, the pair of every label, in the order of
    `Labels.rows`. logs: float32 [pairs]; each pair stands for some rows in the softmax of its sample, and this is
    the logarithm of their number. edges: int64 [BLOCKS + 1], the starts in `rows` of blocks with about equally many
    pairs.
    """

    rows: np.ndarray
    starts: np.ndarray
    samples: np.ndarray
    true: np.ndarray
    logs: np.ndarray
    edges: np.ndarray

    def __len__(self) -> int:
        return len(self.samples)


def inverted(sets: ActiveSets, labels: Labels, size: int) -> Pairs:
    """The pairs of `sets` over `size` rows, by a counting sort.

    Raises:
        ValueError: there are more pairs than int32 can count.
    """
    if len(sets.rows) > np.iinfo(np.int32).max:
        raise ValueError(f"{len(sets.rows):,} active rows of {len(sets)} samples are too many")
    places, rows, starts = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size + 1, np.int32)
    samples, true = np.empty(len(sets.rows), np.int32), np.empty(len(labels.rows), np.int32)
    logs = np.empty(len(sets.rows), np.float32)
    used = _invert(
        sets.ends, sets.rows, sets.found, sets.logs, labels.ends, places, rows, starts, samples, true, logs
    )  # fmt: skip
    rows, starts = rows[:used], starts[: used + 1]
    edges = np.searchsorted(starts, np.arange(BLOCKS + 1) * len(samples) // BLOCKS)
    edges[-1] = used
    return Pairs(rows, starts, samples, true, logs, edges)


@kernel
def _invert(
    ends: np.ndarray,
    active: np.ndarray,
    found: np.ndarray,
    log: np.ndarray,
    label_ends: np.ndarray,
    places: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    samples: np.ndarray,
    true: np.ndarray,
    logs: np.ndarray,
) -> int:
    """Fill in the fields of `Pairs`; returns the number of used rows. places: int32 [size], scratch memory."""
    places[:] = 0
    for row in active:
        places[row] += 1
    used, pairs = 0, 0
    starts[0] = 0
    for row in range(len(places)):
        count = places[row]
        places[row] = pairs
        pairs += count
        rows[used] = row  # the next row overwrites it if unused: faster than a branch that no processor predicts
        starts[used + 1] = pairs
        used += count > 0
    begin, label, none = 0, 0, np.float32(0)
    for sample in range(len(ends)):
        labels = label_ends[sample] - label
        for number in range(begin, ends[sample]):
            row = active[number]
            pair = places[row]
            places[row] = pair + 1
            samples[pair] = sample
            logs[pair] = log[sample] if number >= begin + found[sample] else none
            if number < begin + labels:
                true[label + number - begin] = pair
        begin, label = ends[sample], label_ends[sample]
    return used
