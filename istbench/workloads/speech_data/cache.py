"""Prepared features on disk: made once, mapped by every process.

A prepared directory holds `train_features.npy`, `train_labels.npy`, `train_mean.npy`, `test_features.npy`,
`test_labels.npy` and `prepared.json`.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from istbench.config.numbers import Natural
from istbench.errors import UserError
from istbench.workloads import prepared as shared
from istbench.workloads.base import Progress
from istbench.workloads.prepared import SPLITS, SplitWriter, damaged, map_array, open_labels
from istbench.workloads.speech_data.features import FEATURES, VERSION
from istbench.workloads.speech_data.words import MOST_WORDS

_MEAN = "train_mean.npy"


Word = Annotated[str, Meta(min_length=1, max_length=255)]


class Summary(shared.Summary, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What prepared.json holds.

    Attributes:
        words: the words in the order of their labels.
        converted: clips of both splits that were not 16 kHz mono as they were.
    """

    words: Annotated[tuple[Word, ...], Meta(min_length=2, max_length=MOST_WORDS)]
    converted: Natural


@dataclass(frozen=True)
class Arrays:
    """One split, mapped read-only: features float32 [n, 4096], labels int64 [n]."""

    features: np.ndarray
    labels: np.ndarray


def open_summary(directory: Path) -> Summary:
    """What a prepared directory holds.

    Raises:
        UserError: when its summary is missing or damaged.
    """
    return shared.open_summary(directory, Summary)


def open_split(directory: Path, split: str, words: int) -> Arrays:
    """Map the split "train" or "test" of a prepared directory of so many words.

    Raises:
        UserError: when a file of it is missing or damaged.
    """
    features = map_array(directory, f"{split}_features.npy", np.float32, 2)
    labels = open_labels(directory, split, words, "words")
    if features.shape != (len(labels), FEATURES):
        raise damaged(directory, f"{split}_features.npy has {features.shape}, for {len(labels)} labels")
    return Arrays(features, labels)


def open_mean(directory: Path) -> np.ndarray:
    """The mean features of the training clips of a prepared directory, float32 [4096] in dB.

    Raises:
        UserError: when the file is missing or damaged.
    """
    mean = np.array(map_array(directory, _MEAN, np.float32, 1))
    if mean.shape != (FEATURES,) or not np.isfinite(mean).all():
        raise damaged(directory, f"{_MEAN} is not {FEATURES} numbers")
    return mean


def feature_writer(directory: Path, labels: np.ndarray, is_test: np.ndarray) -> SplitWriter:
    """Writes the features of clips, float32 [b, 4096], whose words and splits are `labels` and `is_test`."""
    return SplitWriter(directory, labels, is_test, name="features", shape=(FEATURES,), kind=np.float32)


def prepared(
    cache: Path,
    kind: str,
    key: Mapping[str, Any],
    words: tuple[str, ...],
    fill: Callable[[Path], int],
    progress: Progress,
) -> tuple[Path, Summary]:
    """The prepared directory of (`kind`, `key`) under `cache`, made by `fill(directory)` unless it is there.

    Args:
        key: JSON-ready; everything that determines the content.
        words: in the order of their labels.
        fill: writes the arrays of both splits into an empty directory; returns how many clips it converted.

    Raises:
        UserError: when `cache` is not writable or the disk is full.
    """

    def make(directory: Path) -> Summary:
        return _summarise(directory, words, fill(directory))

    return shared.prepared(cache / shared.directory_name(kind, VERSION, key), make, _checked, progress)


def require_room(directory: Path, clips: int, way_out: str) -> None:
    """Refuse features of `clips` clips in `directory` where its disk cannot hold them; `way_out` is of the caller.

    Raises:
        UserError: saying what they take and what there is.
    """
    shared.require_room(directory, clips * FEATURES * 4, f"{clips:,} clips", way_out)


def _summarise(directory: Path, words: tuple[str, ...], converted: int) -> Summary:
    fingerprint = hashlib.sha256()
    counts = {}
    for split in SPLITS:
        arrays = open_split(directory, split, len(words))
        counts[split] = len(arrays.labels)
        for array in (arrays.features, arrays.labels):
            fingerprint.update(np.ascontiguousarray(array).data)
    mean = open_split(directory, "train", len(words)).features.mean(0, dtype=np.float64)
    np.save(directory / _MEAN, mean.astype(np.float32))
    return Summary(
        fingerprint=fingerprint.hexdigest(),
        words=words,
        **counts,
        converted=converted,
        bytes=shared.sizes(directory),
    )


def _checked(directory: Path) -> Summary:
    """The summary of a directory whose arrays are as it says."""
    summary = shared.read_summary(directory, Summary)
    for split, count in zip(SPLITS, (summary.train, summary.test), strict=True):
        if len(open_split(directory, split, len(summary.words)).labels) != count:
            raise UserError(f"{directory}: {split} is not of {count} clips")
    open_mean(directory)
    return summary
