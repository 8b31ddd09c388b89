"""Prepared features on disk, made once; every process maps them.

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

from istbench.base.options.numbers import Natural
from istbench.workloads import prepared as shared
from istbench.workloads.base import Progress
from istbench.workloads.prepared import SPLITS, SplitWriter, damaged, map_array, open_labels
from istbench.workloads.speech_data.features import FEATURES, VERSION
from istbench.workloads.speech_data.words import MOST_WORDS

_MEAN = "train_mean.npy"


Word = Annotated[str, Meta(min_length=1, max_length=255)]


class SpeechSummary(shared.Summary, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of prepared.json.

    Attributes:
        words: the words in the order of their labels.
        converted: number of clips in both splits that were not 16 kHz mono.
    """

    words: Annotated[tuple[Word, ...], Meta(min_length=2, max_length=MOST_WORDS)]
    converted: Natural


@dataclass(frozen=True)
class Arrays:
    """One split, mapped read-only: features float32 [n, 4096], labels int64 [n]."""

    features: np.ndarray
    labels: np.ndarray


def open_split(directory: Path, split: str, words: int) -> Arrays:
    """Map the split "train" or "test" of a prepared directory with that number of words.

    Raises:
        UserError: if one of its files is missing or damaged.
    """
    features = map_array(directory, f"{split}_features.npy", np.float32, 2)
    labels = open_labels(directory, split, words, "words")
    if features.shape != (len(labels), FEATURES):
        raise damaged(directory, f"{split}_features.npy has {features.shape}, for {len(labels)} labels")
    return Arrays(features, labels)


def open_mean(directory: Path) -> np.ndarray:
    """The mean features of the training clips of a prepared directory, float32 [4096] in dB.

    Raises:
        UserError: if the file is missing or damaged.
    """
    mean = np.array(map_array(directory, _MEAN, np.float32, 1))
    if mean.shape != (FEATURES,) or not np.isfinite(mean).all():
        raise damaged(directory, f"{_MEAN} does not have {FEATURES} numbers")
    return mean


def feature_writer(directory: Path, labels: np.ndarray, is_test: np.ndarray) -> SplitWriter:
    """A writer for features of clips, float32 [b, 4096], with words `labels` and splits `is_test`."""
    return SplitWriter(directory, labels, is_test, name="features", shape=(FEATURES,), kind=np.float32)


def prepared(
    cache: Path,
    kind: str,
    key: Mapping[str, Any],
    words: tuple[str, ...],
    fill: Callable[[Path], int],
    progress: Progress,
) -> tuple[Path, SpeechSummary]:
    """The prepared directory of (`kind`, `key`) under `cache`. `fill(directory)` makes it unless it exists.

    Args:
        key: JSON-ready; everything that determines the content.
        words: in the order of their labels.
        fill: writes the arrays of both splits into an empty directory; returns the number of converted clips.

    Raises:
        UserError: if `cache` is not writable or the disk is full.
    """

    def make(directory: Path) -> SpeechSummary:
        return _summarise(directory, words, fill(directory))

    return shared.prepared(cache, kind, VERSION, key, SpeechSummary, make, _clips, progress)


def require_room(directory: Path, clips: int, way_out: str) -> None:
    """Check that the disk of `directory` has room for the features of `clips` clips; `way_out` ends the error.

    Raises:
        UserError: naming the needed and the free bytes.
    """
    shared.require_room(directory, clips * FEATURES * 4, f"{clips:,} clips", way_out)


def _summarise(directory: Path, words: tuple[str, ...], converted: int) -> SpeechSummary:
    fingerprint = hashlib.sha256()
    counts = {}
    for split in SPLITS:
        arrays = open_split(directory, split, len(words))
        counts[split] = len(arrays.labels)
        for array in (arrays.features, arrays.labels):
            fingerprint.update(np.ascontiguousarray(array).data)
    mean = open_split(directory, "train", len(words)).features.mean(0, dtype=np.float64)
    np.save(directory / _MEAN, mean.astype(np.float32))
    return SpeechSummary(
        fingerprint=fingerprint.hexdigest(),
        words=words,
        **counts,
        converted=converted,
        bytes=shared.sizes(directory),
    )


def _clips(directory: Path, summary: SpeechSummary, split: str) -> int:
    """The number of clips in the arrays of `split`; refuses a damaged mean too."""
    open_mean(directory)
    return len(open_split(directory, split, len(summary.words)).labels)
