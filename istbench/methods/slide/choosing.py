"""Chooses the numbers of hash functions and tables for a target size of active sets, on a sample of the data.

A row is active if it agrees with the hidden vector in all K functions of at least one of L tables. Each table is
hashed once, for the longest code. The number of first functions in which a pair agrees decides for every K at once.
"""

import math
from typing import NamedTuple

import numpy as np

from istbench.base.seeds import derived_seed
from istbench.methods.slide.hashing import MOST_BITS, Family, HashFamily
from istbench.methods.slide.threads import Threads, kernel

MOST_TABLES = 50
_ROWS, _SAMPLES = 4_096, 64


class Choice(NamedTuple):
    """K functions for each of L tables, and the expected number of active rows of a sample."""

    functions: int
    tables: int
    active: float


def choose(
    family: Family,
    weight: np.ndarray,
    hidden: np.ndarray,
    target: int,
    threads: Threads,
    *,
    seed: int,
    most_tables: int = MOST_TABLES,
) -> Choice:
    """Choose K and L for about `target` active rows of `weight` (float32 [n, width]) for `hidden` [b, width].

    K is the largest with which at most `most_tables` tables are expected to reach the target: among equally many
    active rows, longer codes find likelier ones. L is then the number of tables that comes nearest to the target,
    with the functions that `seed` draws for this K. If no K reaches the target, K = 0 makes all rows active.

    Args:
        seed: the seed of the tables' hash family.
    """
    size = len(weight)
    if target == size:
        return Choice(0, 1, size)
    rows, samples = _sampled(weight, hidden, seed)
    scale = size / len(rows) / len(samples)
    expected = scale * _expected(family, rows, samples, threads, seed, most_tables, size)
    for functions in range(len(expected) - 1, 0, -1):
        if expected[functions, -1] >= target:
            drawn = family(weight.shape[1], functions, most_tables, seed)
            active = scale * _measured(drawn, rows, samples, threads)
            nearest = int(np.argmin(np.abs(np.log(np.maximum(active, 1e-9) / target))))
            return Choice(functions, nearest + 1, float(active[nearest]))
    return Choice(0, 1, size)


def _sampled(weight: np.ndarray, hidden: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """At most 4,096 of the rows and 64 of the samples."""
    random = np.random.default_rng(derived_seed(seed, "choosing"))
    some = weight[np.sort(random.permutation(len(weight))[:_ROWS])]
    return some, hidden[np.sort(random.permutation(len(hidden))[:_SAMPLES])]


def _measured(family: HashFamily, rows: np.ndarray, samples: np.ndarray, threads: Threads) -> np.ndarray:
    """Active rows of all samples together, for the first 1, 2, ... of the family's tables: int64 [tables]."""
    of_rows, of_samples = family.codes(rows, threads), family.codes(samples, threads)
    first = np.zeros(family.tables + 1, np.int64)
    for codes in of_samples.T:
        alike = of_rows == codes[:, None]
        table = np.where(alike.any(axis=0), alike.argmax(axis=0), family.tables)
        first += np.bincount(table, minlength=family.tables + 1)
    return first.cumsum()[:-1]


def _expected(
    family: Family,
    rows: np.ndarray,
    samples: np.ndarray,
    threads: Threads,
    seed: int,
    tables: int,
    size: int,
) -> np.ndarray:
    """Expected active rows of all samples together, for 0 to K functions: [K + 1, tables].

    The expectation is over draws of functions, estimated on 50 or more tables. K is the largest for which
    a table has no more buckets than the next power of two from `size`, the number of all rows.
    """
    width = rows.shape[1]
    bits = family(width, 0, 0, seed).bits
    longest = max(1, min((size - 1).bit_length(), MOST_BITS) // max(1, bits))
    hashed = family(width, longest, max(tables, MOST_TABLES), seed)
    of_rows, of_samples = hashed.codes(rows, threads), hashed.codes(samples, threads)
    counts = np.zeros((len(samples), longest + 1, hashed.tables + 1), np.int64)
    threads.run(lambda number: _agreements(of_rows, of_samples, number, hashed.bits, counts[number]), len(samples))
    return np.asarray(counts.sum(axis=0) @ _found(hashed.tables, tables))


def _found(drawn: int, tables: int) -> np.ndarray:
    """The chance that 1 to `tables` tables out of `drawn` hold one of 0 to `drawn` tables: [drawn + 1, tables]."""
    missed = [
        [math.comb(drawn - few, some) / math.comb(drawn, some) for some in range(1, tables + 1)]
        for few in range(drawn + 1)
    ]
    return 1 - np.array(missed)


@kernel
def _agreements(rows: np.ndarray, samples: np.ndarray, sample: int, bits: int, counts: np.ndarray) -> None:
    """Add to counts[k, m] the rows that agree with a sample in the first k or more functions of m tables."""
    longest = len(counts) - 1
    agreeing = np.zeros(longest + 1, np.int64)
    for row in range(rows.shape[1]):
        agreeing[:] = 0
        for table in range(rows.shape[0]):
            differ = rows[table, row] ^ samples[table, sample]
            agree = longest
            while differ != 0:
                differ >>= bits
                agree -= 1
            agreeing[agree] += 1
        tables = 0
        for functions in range(longest, -1, -1):
            tables += agreeing[functions]
            counts[functions, tables] += 1
