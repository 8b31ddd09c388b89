"""SimHash: a bit is the side of a random plane on which a vector lies (Charikar, STOC 2002).

Planes are sparse, as in SLIDE: they add or subtract a third of a vector's entries (Li, Hastie and Church, KDD
2006). Two vectors at angle a agree in a bit with a probability near 1 - a / pi.
"""

import numpy as np

from istbench.base.seeds import derived_seed
from istbench.methods.slide.hashing import LANES, HashFamily
from istbench.methods.slide.threads import kernel

_DENSITY = 3  # a plane uses one entry in this many
_AT_ONCE = 4


class SimHash(HashFamily):
    """`tables` codes of `functions` bits each, of vectors [n, width]."""

    name = "simhash"

    def __init__(self, width: int, functions: int, tables: int, seed: int) -> None:
        super().__init__(width, functions, tables, bits=1)
        random = np.random.default_rng(derived_seed(seed, "simhash"))
        signed = np.random.default_rng(derived_seed(seed, "signs"))
        planes, used = functions * tables, max(1, round(width / _DENSITY))
        padded = -(-used // _AT_ONCE) * _AT_ONCE
        self.features = np.zeros((planes, padded), np.int32)
        self.signs = np.zeros((planes, padded), np.float32)
        self.features[:, :used] = random.permuted(np.tile(np.arange(width), (planes, 1)), axis=1)[:, :used]
        self.signs[:, :used] = signed.choice([-1.0, 1.0], (planes, used))

    def _hash(self, vectors: np.ndarray, first: int, last: int, codes: np.ndarray) -> None:
        _simhash(vectors, first, last, self.features, self.signs, self.functions, codes)


@kernel
def _simhash(
    vectors: np.ndarray,
    first: int,
    last: int,
    features: np.ndarray,
    signs: np.ndarray,
    functions: int,
    codes: np.ndarray,
) -> None:
    """Fill in the codes of vectors `first` to `last`, one transposed block at a time."""
    width, entries = vectors.shape[1], features.shape[1]
    block = np.zeros((width, LANES), np.float32)
    sums, packed = np.empty(LANES, np.float32), np.empty(LANES, np.int32)
    for start in range(first, last, LANES):
        count = min(LANES, last - start)
        for lane in range(count):
            for feature in range(width):
                block[feature, lane] = vectors[start + lane, feature]
        for table in range(codes.shape[0]):
            packed[:] = 0
            for plane in range(table * functions, (table + 1) * functions):
                sums[:] = 0
                for entry in range(0, entries, _AT_ONCE):
                    a, b = features[plane, entry], features[plane, entry + 1]
                    c, d = features[plane, entry + 2], features[plane, entry + 3]
                    p, q = signs[plane, entry], signs[plane, entry + 1]
                    r, s = signs[plane, entry + 2], signs[plane, entry + 3]
                    for lane in range(LANES):
                        sums[lane] += (p * block[a, lane] + q * block[b, lane]) + (
                            r * block[c, lane] + s * block[d, lane]
                        )
                for lane in range(LANES):
                    packed[lane] = 2 * packed[lane] + (sums[lane] > 0)
            for lane in range(count):
                codes[table, start + lane] = packed[lane]
