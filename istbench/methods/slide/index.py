"""The index of a weight: hash tables and common rows, rebuilt as the weight changes."""

import math
from dataclasses import dataclass

import numpy as np

from istbench.base.seeds import derived_seed
from istbench.methods.slide.choosing import choose
from istbench.methods.slide.hashing import Family, Tables
from istbench.methods.slide.threads import Threads, kernel

COMMON_EVERY = 10
"""Steps between two searches for common rows, each a pass over the rows. Every rebuild searches too."""

_ROWS_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class RebuildSchedule:
    """The steps of rebuilds: the first interval has `first` steps, and each grows by a factor of e to the `growth`.

    SLIDE, section 3.1.3: weights change less and less. With growth 0 all intervals are equal. The schedule depends
    on the step alone, so that checkpoints need no state of it.
    """

    first: int = 50
    growth: float = 0.1

    def rebuilds(self, step: int) -> int:
        """The number of rebuilds that are due after `step` steps."""
        if self.growth == 0:
            return step // self.first
        # The k-th is due after first * (1 + e^g + ... + e^((k - 1) g)) steps, rounded up.
        count = int(math.log1p(step * math.expm1(self.growth) / self.first) / self.growth)
        return next(number for number in (count + 1, count, count - 1) if self._step(number) <= step)

    def due(self, step: int) -> bool:
        """Whether a rebuild is due after the `step`-th step, counted from 1, and before the next."""
        return self.rebuilds(step) > self.rebuilds(step - 1)

    def _step(self, number: int) -> int:
        return math.ceil(self.first * math.expm1(self.growth * number) / math.expm1(self.growth))


def functions_seed(seed: int, rebuilds: int) -> int:
    """The seed of hash functions after `rebuilds`; `seed` is that of the index."""
    return derived_seed(seed, "functions", rebuilds)


class Index:
    """Tables over the rows of a weight (float32 [n, width]) and a bias (float32 [n]), which the caller trains.

    `build` or `load` makes the tables.

    Args:
        functions, tables: K and L. target: in their place, the number of rows that tables make active for a sample;
            K and L are then chosen whenever functions are drawn. common: rows that are active for every sample.
        schedule: of rebuilds, which draw new functions and hash all rows.

    Attributes:
        built: whether there are tables.
        common: int32, the rows with the largest outputs for the mean hidden vector, at most a few steps old.
        family: the hash functions, K for each of L tables. rebuilds: their number so far.
    """

    def __init__(
        self,
        kind: Family,
        weight: np.ndarray,
        bias: np.ndarray,
        threads: Threads,
        *,
        functions: int = 0,
        tables: int = 0,
        target: int = 0,
        common: int = 0,
        schedule: RebuildSchedule,
        seed: int,
    ) -> None:
        self._kind, self._weight, self._bias, self._threads, self._seed = kind, weight, bias, threads, seed
        self._sizes, self._target, self._common, self._schedule = (functions, tables), target, common, schedule
        self.rebuilds = 0
        self.built = False

    def build(self, hidden: np.ndarray) -> None:
        """Build the first tables. hidden: float32 [b, width], hidden vectors for the choice of K and L."""
        self._draw(hidden)
        self.common = common_rows(self._weight, self._bias, hidden, self._common, self._threads)
        self.built = True

    def _draw(self, hidden: np.ndarray) -> None:
        weight, threads, sizes = self._weight, self._threads, self._sizes
        seed = functions_seed(self._seed, self.rebuilds)
        if self._target:
            sizes = choose(self._kind, weight, hidden, self._target, threads, seed=seed)[:2]
        self.family = self._kind(weight.shape[1], *sizes, seed)
        self.tables = Tables.empty(len(weight))  # free the memory of the old tables first
        self.tables = Tables.build(self.family, weight, threads)

    def codes(self, hidden: np.ndarray) -> np.ndarray:
        """The codes of `hidden` (float32 [b, width]), int32 [tables, b]."""
        return self.family.codes(hidden, self._threads)

    def stepped(self, step: int, hidden: np.ndarray) -> bool:
        """Rebuild the tables if that is due after the `step`-th step, counted from 1; returns whether it was.

        Args:
            hidden: float32 [b, width], the hidden vectors of the last minibatch.
        """
        due = self._schedule.due(step)
        if due or step % COMMON_EVERY == 0:
            self.common = common_rows(self._weight, self._bias, hidden, self._common, self._threads)
        if not due:
            return False
        self.rebuilds += 1
        self._draw(hidden)
        return True

    def state(self) -> dict[str, np.ndarray | int]:
        """The state for a checkpoint: arrays, which are not copied, and numbers."""
        return {
            "rows": self.tables.rows,
            "starts": self.tables.starts,
            "common": self.common,
            "functions": self.family.functions,
            "rebuilds": self.rebuilds,
        }

    def load(self, rows: np.ndarray, starts: np.ndarray, common: np.ndarray, functions: int, rebuilds: int) -> None:
        """Load the `state` of an index with the same options and number of rows.

        Raises:
            ValueError: the state does not fit.
        """
        size, tables = len(self._weight), len(rows)
        family = self._kind(self._weight.shape[1], functions, tables, functions_seed(self._seed, rebuilds))
        fitting = ((rows, (tables, size)), (starts, (tables, family.buckets + 1)), (common, (len(common),)))
        if not all(own.shape == shape and own.dtype == np.int32 for own, shape in fitting):
            raise ValueError("the tables of another index")
        self.family, self.tables = family, Tables(rows.copy(), starts.copy())
        self.common, self.rebuilds, self.built = common.copy(), rebuilds, True


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
