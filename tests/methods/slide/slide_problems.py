"""Small problems that tests of the kernels share: rows, hidden vectors, labels, and active sets drawn at random."""

import numpy as np

from istbench.methods.slide.active import ActiveSets, Labels


def labels_of(rows):
    """Labels of samples that have `rows`, with equal shares."""
    ends = np.cumsum([len(own) for own in rows], dtype=np.int64)
    shares = [1 / len(own) for own in rows for _ in own]
    return Labels(ends, np.array([row for own in rows for row in own], np.int32), np.array(shares, np.float32))


def sets_of(rows):
    """Active sets of these `rows`."""
    ends = np.cumsum([len(own) for own in rows], dtype=np.int64)
    active = np.array([row for own in rows for row in own], np.int32)
    return ActiveSets(ends, active, np.diff(ends, prepend=0), np.zeros(len(ends), np.float32))


def rows_of(sets):
    """The active rows of every sample."""
    return [rows.tolist() for rows in np.split(sets.rows, sets.ends[:-1])]


def drawn_rows(size, samples, most, seed):
    """Up to `most` of `size` rows for every sample, none for the second."""
    random = np.random.default_rng(seed)
    counts = random.integers(1, most, samples)
    return [random.permutation(size)[: 0 if place == 1 else count].tolist() for place, count in enumerate(counts)]


def normal(*shape, seed=0):
    """Float32 standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
