"""Active sets by row instead of by sample: which samples use which row."""

from dataclasses import dataclass

import numpy as np

from istbench.slide.active import ActiveSets, Labels
from istbench.slide.threads import kernel

BLOCKS = 16
"""Parts that a pass over all pairs is cut into, whatever the number of threads: sums depend on them."""


@dataclass(frozen=True)
class Pairs:
    """The pairs of an active row and a sample that uses it, by row, and by sample within a row.

    rows: int32 [m], the rows that some sample uses, in order. starts: int32 [m + 1]; the pairs of rows[i] are those
    from starts[i] to starts[i + 1]. samples: int32 [pairs]. true: int32, the pair of every label, in the order of
    `Labels.rows`. logs: float32 [pairs], of each the logarithm of how many rows it stands for in its sample's
    softmax. edges: int64 [BLOCKS + 1], where blocks of about as many pairs each start in `rows`.
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
    """The pairs of `sets` over `size` rows, by row: a counting sort.

    Raises:
        ValueError: for more pairs than int32 counts.
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
    """Fill in the fields of `Pairs`; how many rows are used. `places` (int32 [size]) is for work."""
    places[:] = 0
    for row in active:
        places[row] += 1
    used, pairs = 0, 0
    starts[0] = 0
    for row in range(len(places)):
        count = places[row]
        places[row] = pairs
        pairs += count
        rows[used] = row  # written over where none uses it: quicker than a branch that no processor foresees
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
