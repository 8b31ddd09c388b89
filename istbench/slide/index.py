"""Tables that are kept up with the weights they were built from."""

from dataclasses import dataclass

import numpy as np

from istbench.seeds import derived_seed
from istbench.slide.hashing import Family, HashFamily
from istbench.slide.schedule import RebuildSchedule
from istbench.slide.tables import Tables, most_changed
from istbench.slide.threads import Threads


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """What tables there are, and when they are built anew.

    Attributes:
        functions, tables: K and L. limit: rows that an active set takes of a bucket, None for all.
        schedule: of rebuilds. share: of all rows, those that are hashed anew at a rebuild, the most changed first.
        redrawn_every: after so many steps the next rebuild draws new functions, and hashes all rows; 0 for never.
    """

    functions: int
    tables: int
    schedule: RebuildSchedule
    limit: int | None = None
    share: float = 1.0
    redrawn_every: int = 0


def functions_seed(seed: int, drawn: int) -> int:
    """The seed of an index's hash functions after they were drawn anew `drawn` times; `seed` is the index's."""
    return derived_seed(seed, "functions", drawn)


class Index:
    """Tables over the rows of a weight (float32 [n, width]), which the caller trains.

    Attributes:
        changes: float32 [n], how much every row changed since it was hashed last; `kernels.backward` adds to it.
        rebuilds: so far.
    """

    def __init__(
        self, kind: Family, options: IndexOptions, weight: np.ndarray, threads: Threads, *, seed: int
    ) -> None:
        self._kind, self._options, self._seed, self._threads = kind, options, seed, threads
        self._weight, self._drawn = weight, 0
        self.changes = np.zeros(len(weight), np.float32)
        self.rebuilds = 0
        self.family = self._draw()
        self.tables = Tables.build(self.family, weight, threads, options.limit)

    def _draw(self) -> HashFamily:
        options, seed = self._options, functions_seed(self._seed, self._drawn)
        return self._kind(self._weight.shape[1], options.functions, options.tables, seed)

    def codes(self, hidden: np.ndarray) -> np.ndarray:
        """The codes of `hidden` (float32 [b, width]), int32 [tables, b]."""
        return self.family.codes(hidden, self._threads)

    def stepped(self, step: int) -> bool:
        """Build the tables anew if that is due after the `step`-th step, counted from 1; whether it was."""
        if not self._options.schedule.due(step):
            return False
        self.rebuilds += 1
        every = self._options.redrawn_every
        drawn = step // every if every else 0
        if drawn > self._drawn or self._options.share == 1:
            if drawn > self._drawn:
                self._drawn = drawn
                self.family = self._draw()
            self.tables.rebuild(self.family, self._weight, self._threads)
            self.changes[:] = 0
        else:
            rows = most_changed(self.changes, round(self._options.share * len(self._weight)))
            self.tables.update(rows, self.family.codes(self._weight[rows], self._threads), self._threads)
            self.changes[rows] = 0
        return True

    def state(self) -> dict[str, np.ndarray | int]:
        """Enough to go on with the same tables: arrays, which are not copied, and numbers."""
        return {
            "rows": self.tables.rows,
            "starts": self.tables.starts,
            "changes": self.changes,
            "drawn": self._drawn,
            "rebuilds": self.rebuilds,
        }

    def load(self, rows: np.ndarray, starts: np.ndarray, changes: np.ndarray, drawn: int, rebuilds: int) -> None:
        """Go on from a `state` of an index with the same options over as many rows.

        Raises:
            ValueError: for the state of another one.
        """
        own = (self.tables.rows, self.tables.starts, self.changes)
        for mine, other in zip(own, (rows, starts, changes), strict=True):
            if (mine.shape, mine.dtype) != (other.shape, other.dtype):
                raise ValueError("the tables of another index")
        for mine, other in zip(own, (rows, starts, changes), strict=True):
            mine[:] = other
        self._drawn, self.rebuilds = drawn, rebuilds
        self.family = self._draw()
