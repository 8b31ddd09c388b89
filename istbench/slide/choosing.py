"""How many functions and tables give active sets of a wanted size, found on some rows and hidden vectors.

A row is active where it agrees with the hidden vector in all K functions of some of L tables. Functions of a table
are hashed once for the longest code: in how many of the first ones a pair agrees tells of every K at once.
"""

import math
from dataclasses import dataclass

import numpy as np

from istbench.errors import UserError
from istbench.seeds import derived_seed
from istbench.slide.hashing import MOST_BITS, Family, HashFamily
from istbench.slide.threads import Threads, kernel

MOST_TABLES = 50
_ROWS, _SAMPLES = 4_096, 64


@dataclass(frozen=True, kw_only=True)
class Choice:
    """K functions for each of L tables, and how many rows they are expected to make active for a sample."""

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
    most_buckets: int | None = None,
) -> Choice:
    """The K and L that make about `target` rows of `weight` (float32 [n, width]) active for `hidden` [b, width].

    The largest K whose tables, no more than `most_tables`, are expected to reach it, as longer codes find likelier
    rows for as many active ones; and the L that comes nearest with the functions that `seed` draws for this K. All
    rows, by K = 0, where nothing less reaches it.

    Args:
        seed: that the tables' family will have.
        most_buckets: of a table; by default the least power of two that is no less than the rows.

    Raises:
        UserError: for more active rows than there are.
    """
    size = len(weight)
    if target > size:
        raise UserError(f"target_active={target:,} is more than the {size:,} outputs; lower it")
    if target == size:
        return Choice(functions=0, tables=1, active=size)
    some, asked = _sampled(weight, hidden, seed)
    scale = size / len(some) / len(asked)
    expected = scale * _expected(family, some, asked, threads, seed, most_tables, most_buckets or size)
    for functions in range(len(expected) - 1, 0, -1):
        if expected[functions, -1] >= target:
            active = scale * _measured(family(weight.shape[1], functions, most_tables, seed), some, asked, threads)
            nearest = int(np.argmin(np.abs(np.log(np.maximum(active, 1e-9) / target))))
            return Choice(functions=functions, tables=nearest + 1, active=float(active[nearest]))
    return Choice(functions=0, tables=1, active=size)


def _sampled(weight: np.ndarray, hidden: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """At most 4,096 of the rows and 64 of the samples."""
    random = np.random.default_rng(derived_seed(seed, "choosing"))
    some = weight[np.sort(random.permutation(len(weight))[:_ROWS])]
    return some, hidden[np.sort(random.permutation(len(hidden))[:_SAMPLES])]


def _measured(family: HashFamily, rows: np.ndarray, samples: np.ndarray, threads: Threads) -> np.ndarray:
    """Active rows of all samples together by the first of the family's tables, int64 [tables]."""
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
    most_buckets: int,
) -> np.ndarray:
    """Active rows of all samples together, whatever functions are drawn: [K + 1, tables], for 0 to K functions.

    By 50 tables or more; K is the largest for which a table has no more than the next power of two from
    `most_buckets`.
    """
    width = rows.shape[1]
    bits = family(width, 0, 0, seed).bits
    longest = max(1, min((most_buckets - 1).bit_length(), MOST_BITS) // max(1, bits))
    hashed = family(width, longest, max(tables, MOST_TABLES), seed)
    of_rows, of_samples = hashed.codes(rows, threads), hashed.codes(samples, threads)
    counts = np.zeros((len(samples), longest + 1, hashed.tables + 1), np.int64)
    threads.run(lambda number: _agreements(of_rows, of_samples, number, hashed.bits, counts[number]), len(samples))
    return np.asarray(counts.sum(axis=0) @ _found(hashed.tables, tables))


def _found(drawn: int, tables: int) -> np.ndarray:
    """The chance that 1 to `tables` tables out of `drawn` have one of 0 to `drawn` of them: [drawn + 1, tables]."""
    missed = [
        [math.comb(drawn - few, some) / math.comb(drawn, some) for some in range(1, tables + 1)]
        for few in range(drawn + 1)
    ]
    return 1 - np.array(missed)


@kernel
def _agreements(rows: np.ndarray, samples: np.ndarray, sample: int, bits: int, counts: np.ndarray) -> None:
    """Add to counts[k, m] the rows that agree with a sample in the first k functions or more of m tables."""
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
