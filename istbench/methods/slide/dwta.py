"""Densified winner-take-all hashing: the largest of a few random entries (Chen and Shrivastava, UAI 2018).

A function reads a bin of eight entries; its value is the place of the largest, of equals the first. The bins of a
table come from a random permutation, so that they share no entry; if one permutation is too short, from several. A
bin of zeros borrows the value of another bin, which a fixed random sequence chooses.
"""

import numpy as np

from istbench.base.seeds import derived_seed
from istbench.methods.slide.hashing import LANES, HashFamily
from istbench.methods.slide.threads import kernel

_BIN = 8
_BORROWED = 64  # bins that an empty one tries


class DWTA(HashFamily):
    """`tables` codes of `functions` values each, of vectors [n, width]; a value has three bits.

    Below a width of eight, the size of bins is the largest power of two that fits.
    """

    name = "dwta"

    def __init__(self, width: int, functions: int, tables: int, seed: int) -> None:
        bits = min(_BIN, width).bit_length() - 1
        super().__init__(width, functions, tables, bits)
        random = np.random.default_rng(derived_seed(seed, "dwta"))
        bins, size = functions * tables, 1 << bits
        dealt = width // size
        permutations = -(-functions // dealt)  # of a table
        permuted = random.permuted(np.tile(np.arange(width, dtype=np.int32), (tables * permutations, 1)), axis=1)
        of_tables = permuted[:, : dealt * size].reshape(tables, permutations * dealt, size)
        self.bins = of_tables[:, :functions].reshape(bins, size)
        lent = np.random.default_rng(derived_seed(seed, "borrowed"))
        self.borrowed = lent.integers(0, max(1, bins), (bins, _BORROWED), dtype=np.int32)

    def _hash(self, vectors: np.ndarray, first: int, last: int, codes: np.ndarray) -> None:
        _dwta(vectors, first, last, self.bins, self.borrowed, self.functions, self.bits, codes)


@kernel
def _dwta(
    vectors: np.ndarray,
    first: int,
    last: int,
    bins: np.ndarray,
    borrowed: np.ndarray,
    functions: int,
    bits: int,
    codes: np.ndarray,
) -> None:
    """Fill in the codes of vectors `first` to `last`, one transposed block at a time."""
    width = vectors.shape[1]
    block = np.zeros((width, LANES), np.float32)
    best, packed = np.empty(LANES, np.float32), np.empty(LANES, np.int32)
    places = np.empty((len(bins), LANES), np.int32)
    for start in range(first, last, LANES):
        count = min(LANES, last - start)
        for lane in range(count):
            for feature in range(width):
                block[feature, lane] = vectors[start + lane, feature]
        empty = False
        for number in range(len(bins)):
            feature = bins[number, 0]
            for lane in range(LANES):
                best[lane] = block[feature, lane]
                places[number, lane] = 0
            for place in range(1, bins.shape[1]):
                feature, here = bins[number, place], np.int32(place)
                for lane in range(LANES):
                    larger = block[feature, lane] > best[lane]
                    places[number, lane] = here if larger else places[number, lane]
                    best[lane] = block[feature, lane] if larger else best[lane]
            zeros = 0
            for lane in range(LANES):
                zeros += best[lane] == 0
            if zeros > 0:
                empty |= _mark_empty(block, bins, number, places)
        if empty:
            _densify(places, borrowed)
        for table in range(codes.shape[0]):
            packed[:] = 0
            for number in range(table * functions, (table + 1) * functions):
                for lane in range(LANES):
                    packed[lane] = (packed[lane] << bits) | places[number, lane]
            for lane in range(count):
                codes[table, start + lane] = packed[lane]


@kernel
def _mark_empty(block: np.ndarray, bins: np.ndarray, number: int, places: np.ndarray) -> bool:
    """Give a bin the place -1 in every lane where it has only zeros; returns whether there is such a lane."""
    found = False
    for lane in range(block.shape[1]):
        zero = True
        for place in range(bins.shape[1]):
            zero &= block[bins[number, place], lane] == 0
        if zero:
            places[number, lane] = -1
            found = True
    return found


@kernel
def _densify(places: np.ndarray, borrowed: np.ndarray) -> None:
    """Give every empty bin the place of the first bin in its sequence that is not empty, or 0 without one."""
    for lane in range(places.shape[1]):
        for number in range(places.shape[0]):
            if places[number, lane] == -1:
                value = 0
                for turn in range(borrowed.shape[1]):
                    other = places[borrowed[number, turn], lane]
                    if other >= 0:
                        value = other
                        break
                places[number, lane] = -2 - value  # no other bin may borrow it
        for number in range(places.shape[0]):
            if places[number, lane] < 0:
                places[number, lane] = -2 - places[number, lane]
