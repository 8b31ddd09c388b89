"""Active sets: the output rows that a step computes for each sample, and the samples that use each row."""

from dataclasses import dataclass

import numpy as np

from istbench.methods.slide.hashing import Tables
from istbench.methods.slide.threads import Threads, kernel

_SAMPLES_AT_ONCE = 16
_NO_ROWS = np.empty(0, np.int32)


@dataclass(frozen=True)
class Labels:
    """The true rows of every sample: those of sample s are rows[ends[s - 1]:ends[s]], each once.

    ends: int64 [b]. rows: int32, in the numbering of the node that owns them. shares: float32, the share of each
    label in the sample's loss; over all nodes they add up to one, unless the sample has no labels.
    """

    ends: np.ndarray
    rows: np.ndarray
    shares: np.ndarray


def no_labels(samples: int) -> Labels:
    return Labels(np.zeros(samples, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))


def owned(ends: np.ndarray, rows: np.ndarray, first: int, last: int) -> Labels:
    """The labels of a batch that belong to a node, which owns rows `first` to `last` (exclusive).

    Args:
        ends: int64 [b], the end of each sample's labels. rows: int, all labels, each once in a sample.
    """
    counts = np.diff(ends, prepend=0)
    samples = np.repeat(np.arange(len(ends)), counts)
    mine = (rows >= first) & (rows < last)
    own = np.cumsum(np.bincount(samples[mine], minlength=len(ends)))
    return Labels(own, (rows[mine] - first).astype(np.int32), (1 / counts[samples[mine]]).astype(np.float32))


@dataclass(frozen=True)
class ActiveSets:
    """The active rows of every sample: those of sample s are rows[ends[s - 1]:ends[s]], each once.

    ends: int64 [b]. rows: int32; a sample has its true rows first, then common rows, then rows from tables, then
    random rows. found: int64 [b], the number of rows before the random rows of a sample. logs: float32 [b]; each
    random row of a sample stands for an equal part of the rows that are not found, and this is the logarithm of
    their number.
    """

    ends: np.ndarray
    rows: np.ndarray
    found: np.ndarray
    logs: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    def have(self, rows: np.ndarray) -> np.ndarray:
        """Whether each of `rows` (int [b, k], k for each sample) is active without being drawn at random: bool.

        Without labels, the mean over the k largest outputs of a sample is its recall at k.
        """
        there = np.zeros(rows.shape, bool)
        begin = self.ends - self.sizes
        size = 1 + max(int(rows.max(initial=0)), int(self.rows.max(initial=0)))
        active = np.zeros(size, bool)
        for sample, (first, found) in enumerate(zip(begin.tolist(), self.found.tolist(), strict=True)):
            own = self.rows[first : first + found]
            active[own] = True
            there[sample] = active[rows[sample]]
            active[own] = False
        return there

    @property
    def sizes(self) -> np.ndarray:
        """The number of active rows of every sample, int64 [b]."""
        return np.diff(self.ends, prepend=0)


def active_sets(
    labels: Labels,
    size: int,
    threads: Threads,
    *,
    tables: Tables | None = None,
    codes: np.ndarray | None = None,
    common: np.ndarray = _NO_ROWS,
    random: int = 0,
    seed: int = 0,
) -> ActiveSets:
    """The true rows of every sample, the `common` rows, the rows in its buckets of `tables`, and `random` others.

    Args:
        size: the number of rows. tables, codes: of the same hash family; codes int32 [tables, b] of the hidden
            vectors. Sampled softmax has neither.
        common: int32, rows that every sample gets.
        random: the number of other rows, which are drawn uniformly; at most all rows.
        seed: for random rows. It must change every step.
    """
    samples = len(labels.ends)
    if tables is None or codes is None:
        tables, codes = Tables.empty(size), np.zeros((0, samples), np.int32)
    random = min(random, size)
    room = np.empty(samples, np.int64)
    _room(tables.starts, codes, labels.ends, len(common) + random, size, room)
    ends = np.cumsum(room)
    drawn = np.empty(int(ends[-1]) if samples else 0, np.int32)
    counts, found = np.empty(samples, np.int64), np.empty(samples, np.int64)

    def collect(first: int, last: int) -> None:
        _collect(
            tables.starts, tables.rows, codes, labels.ends, labels.rows, common, ends, random, size,
            np.uint64(seed), first, last, drawn, counts, found,
        )  # fmt: skip

    threads.ranges(collect, samples, _SAMPLES_AT_ONCE)
    kept = np.cumsum(counts)
    rows = np.empty(int(kept[-1]) if samples else 0, np.int32)
    threads.ranges(lambda first, last: _compact(drawn, ends, kept, first, last, rows), samples, _SAMPLES_AT_ONCE)
    logs = np.log(np.maximum(1, size - found) / np.maximum(1, counts - found)).astype(np.float32)
    return ActiveSets(kept, rows, found, logs)


@kernel
def _room(
    starts: np.ndarray,
    codes: np.ndarray,
    label_ends: np.ndarray,
    others: int,
    size: int,
    room: np.ndarray,
) -> None:
    """Fill `room` with an upper bound on the active rows of every sample."""
    for sample in range(codes.shape[1]):
        rows = label_ends[sample] - (label_ends[sample - 1] if sample > 0 else 0)
        for table in range(codes.shape[0]):
            code = codes[table, sample]
            rows += starts[table, code + 1] - starts[table, code]
        room[sample] = min(size, rows + others)


@kernel
def _collect(
    starts: np.ndarray,
    ids: np.ndarray,
    codes: np.ndarray,
    label_ends: np.ndarray,
    labels: np.ndarray,
    common: np.ndarray,
    ends: np.ndarray,
    random: int,
    size: int,
    seed: np.uint64,
    first: int,
    last: int,
    drawn: np.ndarray,
    counts: np.ndarray,
    found: np.ndarray,
) -> None:
    """Fill `drawn` with the active rows of samples `first` to `last`, each from the start of its room."""
    taken = np.zeros(size // 8 + 1, np.uint8)  # a bit a row
    for sample in range(first, last):
        begin = ends[sample - 1] if sample > 0 else 0
        end = begin
        for label in range(label_ends[sample - 1] if sample > 0 else 0, label_ends[sample]):
            end = _take(labels[label], taken, drawn, end)
        for row in common:
            end = _take(row, taken, drawn, end)
        for table in range(codes.shape[0]):
            code = codes[table, sample]
            for place in range(starts[table, code], starts[table, code + 1]):
                end = _take(ids[table, place], taken, drawn, end)
        found[sample] = end - begin
        end = _pad(begin, min(size, end - begin + random), size, seed, sample, taken, drawn, end)
        counts[sample] = end - begin
        for place in range(begin, end):
            taken[drawn[place] >> 3] = 0


@kernel
def _take(row: int, taken: np.ndarray, drawn: np.ndarray, end: int) -> int:
    """Append `row` at `end` unless it is taken; returns the new end."""
    bit = 1 << (row & 7)
    if taken[row >> 3] & bit:
        return end
    taken[row >> 3] |= bit
    drawn[end] = row
    return end + 1


@kernel
def _pad(
    begin: int, least: int, size: int, seed: np.uint64, sample: int, taken: np.ndarray, drawn: np.ndarray, end: int
) -> int:
    """Append random rows that are not taken until there are `least` from `begin` on; returns the new end."""
    stop, draw = begin + least, 0
    if 2 * least <= size:  # at least half of all rows are new
        while end < stop:
            end = _take(_draw(seed, sample, draw, size), taken, drawn, end)
            draw += 1
        return end
    free = size - (end - begin)
    for row in range(size):  # Knuth's algorithm S
        if end < stop and (taken[row >> 3] >> (row & 7)) & 1 == 0:
            if _draw(seed, sample, draw, free) < stop - end:
                end = _take(row, taken, drawn, end)
            draw += 1
            free -= 1
    return end


@kernel
def _draw(seed: np.uint64, sample: int, number: int, below: int) -> int:
    """Random number `number` of the stream of `sample`, from 0 to `below` - 1 (SplitMix64)."""
    word = seed + np.uint64(sample) * np.uint64(0xD1342543DE82EF95)
    word += np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    for _ in range(2):
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
    return int(np.int64(((word >> np.uint64(32)) * np.uint64(below)) >> np.uint64(32)))


@kernel
def _compact(
    drawn: np.ndarray, ends: np.ndarray, kept: np.ndarray, first: int, last: int, rows: np.ndarray
) -> None:
    """Copy the rows of samples `first` to `last` from their room in `drawn` to their place in `rows`."""
    for sample in range(first, last):
        begin = kept[sample - 1] if sample > 0 else 0
        source = ends[sample - 1] if sample > 0 else 0
        for place in range(kept[sample] - begin):
            rows[begin + place] = drawn[source + place]


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
