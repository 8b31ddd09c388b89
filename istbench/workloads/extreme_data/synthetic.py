"""Synthetic points with a natural long tail of labels, which a network with a small hidden layer can learn.

The frequency of a label is a power of its rank, so most labels have a handful of points. Every label has a
prototype, some random features. A point draws its first label by these frequencies, and more labels from the
neighbours of the first in rank, like products that are bought together. Its features are some of each label's
prototype, and common features without information, drawn by a power law too. As with tf-idf, the values of a point
have norm one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from istbench.workloads.extreme_data.points import Points, Rows

_TEST_SHARE, _MOST_TEST = 0.2, 10_000
_CHUNK = 8_192  # points drawn at a time; the data depends on it
_LABELS_A_POINT = 5.45  # the average of Amazon-670K
_NEIGHBOURS = 16
_PROTOTYPE = 12  # features of a label's prototype
_OF_A_LABEL = 8  # draws of a point from each prototype, with repetition
_COMMON = 24
_TAIL, _COMMON_TAIL = 1.0, 1.0  # exponents of the power laws


@dataclass(frozen=True, kw_only=True)
class MadeUp:
    """The settings of a set of synthetic points.

    `points` is the number of training points. There are a fifth as many test points, at most 10,000.
    """

    points: int
    features: int
    labels: int
    seed: int

    @property
    def test(self) -> int:
        """Number of test points."""
        return max(1, min(_MOST_TEST, round(self.points * _TEST_SHARE)))

    @property
    def bytes_on_disk(self) -> int:
        """About the bytes of the prepared points: somewhat fewer, because a point draws some features twice."""
        features = min(self.features, _LABELS_A_POINT * _OF_A_LABEL + _COMMON)
        ends, index, value = 8, 4, 4
        a_point = 2 * ends + _LABELS_A_POINT * index + features * (index + value)
        return round((self.points + self.test) * a_point)

    def chunks(self) -> Iterator[tuple[str, Points]]:
        """Yield all points in chunks, each with its split."""
        random = np.random.default_rng([self.seed, 0])
        prototypes = random.integers(0, self.features, (self.labels, _PROTOTYPE), dtype=np.int32)
        ranks = random.permutation(self.labels)
        named, common = _power_law(self.labels, _TAIL), _power_law(self.features, _COMMON_TAIL)
        for number, (split, count) in enumerate((("train", self.points), ("test", self.test)), start=1):
            for first in range(0, count, _CHUNK):
                draw = np.random.default_rng([self.seed, number, first])
                labels = self._labels(min(_CHUNK, count - first), ranks, named, draw)
                yield split, Points(self._features(labels, prototypes, common, draw), labels)

    def _labels(self, count: int, ranks: np.ndarray, named: np.ndarray, draw: np.random.Generator) -> Rows:
        more = np.minimum(draw.poisson(_LABELS_A_POINT - 1, count), _NEIGHBOURS)
        first = np.searchsorted(named, draw.random(count))
        points = np.repeat(np.arange(count), more)
        block = first[points] // _NEIGHBOURS * _NEIGHBOURS
        others = np.minimum(block + draw.integers(0, _NEIGHBOURS, len(points)), self.labels - 1)
        points, labels, _ = _merged(
            np.concatenate([np.arange(count), points]), ranks[np.concatenate([first, others])], None, self.labels
        )
        return Rows(_ends(points, count), labels)

    def _features(
        self, labels: Rows, prototypes: np.ndarray, common: np.ndarray, draw: np.random.Generator
    ) -> Rows:
        count = len(labels)
        owners = np.repeat(np.arange(count), np.diff(labels.ends, prepend=0))
        shown = prototypes[labels.indices[:, None], draw.integers(0, _PROTOTYPE, (len(owners), _OF_A_LABEL))]
        noise = np.searchsorted(common, draw.random(count * _COMMON))
        points = np.concatenate([np.repeat(owners, _OF_A_LABEL), np.repeat(np.arange(count), _COMMON)])
        weights = draw.lognormal(0, 0.5, len(points))
        weights[owners.size * _OF_A_LABEL :] *= 0.5  # common features weigh less
        points, features, values = _merged(points, np.concatenate([shown.ravel(), noise]), weights, self.features)
        lengths = np.sqrt(np.bincount(points, values**2, count))
        return Rows(_ends(points, count), features, (values / lengths[points]).astype(np.float32))


def _power_law(count: int, exponent: float) -> np.ndarray:
    """The cumulative probabilities of `count` items, each with a power of its rank as weight."""
    weights = np.cumsum((np.arange(count) + 10.0) ** -exponent)
    cumulative: np.ndarray = weights / weights[-1]
    cumulative[-1] = 1.0
    return cumulative


def _merged(
    rows: np.ndarray, columns: np.ndarray, weights: np.ndarray | None, width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries sorted by row and column, without duplicates, with summed weights (one without weights)."""
    keys = rows.astype(np.int64) * width + columns
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    summed = np.ones(len(starts)) if weights is None else np.add.reduceat(weights[order], starts)
    merged = keys[starts]
    return merged // width, (merged % width).astype(np.int32), summed


def _ends(rows: np.ndarray, count: int) -> np.ndarray:
    return np.cumsum(np.bincount(rows, minlength=count))
