"""Prepared images on disk: decoded arrays that every process maps, or a list of files to decode later.

A directory of decoded images holds `train_images.npy`, `train_labels.npy`, the same for the test split, and
`prepared.json`. A directory of listed files has `train_paths.npy` in place of the images.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from istbench.base.options.numbers import Natural
from istbench.workloads import prepared as shared
from istbench.workloads.base import Progress
from istbench.workloads.image_data.folders import MOST_CLASSES
from istbench.workloads.prepared import SPLITS, SplitWriter, damaged, map_array, open_labels

VERSION = 3
"""Part of every cache key. Raise it when the pixels of an image or the other arrays change."""
LARGEST_DECODED = 64
"""Images up to this resolution are stored decoded."""

_CHUNK = 4_096
_HASHED = 2**20

ClassName = Annotated[str, Meta(min_length=1, max_length=255)]
Level = Annotated[float, Meta(ge=0, le=255)]
Spread = Annotated[float, Meta(ge=1, le=255)]


class _Summary(shared.Summary, frozen=True, kw_only=True, forbid_unknown_fields=True):
    classes: Annotated[tuple[ClassName, ...], Meta(min_length=2, max_length=MOST_CLASSES)]
    converted: Natural


class DecodedSummary(_Summary, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of prepared.json for decoded images.

    Attributes:
        classes: in the order of their labels.
        converted, resized: numbers of images in both splits that were not RGB, or not of this size.
        resolution: height and width. mean, deviation: of the training pixels for each colour, 0 to 255.
    """

    resized: Natural
    resolution: Annotated[int, Meta(ge=8, le=LARGEST_DECODED)]
    mean: tuple[Level, Level, Level]
    deviation: tuple[Spread, Spread, Spread]


class ListedSummary(_Summary, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of prepared.json for listed files, which were all decoded once as a check.

    Attributes:
        classes: in the order of their labels. converted: number of images that are not RGB. root: folder of the
            paths.
    """

    root: Annotated[str, Meta(min_length=1, max_length=4096)]


@dataclass(frozen=True)
class DecodedSplit:
    """One split, mapped read-only: images uint8 [n, 3, resolution, resolution], labels int64 [n]."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class ListedSplit:
    """One split: paths of the images, and their labels int64 [n]."""

    paths: Sequence[Path]
    labels: np.ndarray


def open_decoded(
    directory: Path, *, with_test: bool = True
) -> tuple[DecodedSummary, DecodedSplit, DecodedSplit | None]:
    """Map a directory of decoded images: its summary, the training split and, `with_test`, the test split.

    Raises:
        UserError: if one of its files is missing or damaged.
    """
    summary = shared.open_summary(directory, DecodedSummary)
    train, test = SPLITS
    split = _decoded_split(directory, test, summary) if with_test else None
    return summary, _decoded_split(directory, train, summary), split


def open_listed(
    directory: Path, *, with_test: bool = True
) -> tuple[ListedSummary, ListedSplit, ListedSplit | None]:
    """Open a directory of listed files: its summary, the training split and, `with_test`, the test split.

    Raises:
        UserError: if one of its files is missing or damaged.
    """
    summary = shared.open_summary(directory, ListedSummary)
    train, test = SPLITS
    split = _listed_split(directory, test, summary) if with_test else None
    return summary, _listed_split(directory, train, summary), split


def open_classes(directory: Path) -> tuple[str, ...]:
    """The classes of a prepared directory of either kind, in the order of their labels.

    Raises:
        UserError: if its summary is missing or damaged.
    """
    kind = DecodedSummary if (directory / "train_images.npy").exists() else ListedSummary
    return shared.open_summary(directory, kind).classes


def image_writer(directory: Path, labels: np.ndarray, is_test: np.ndarray, resolution: int) -> SplitWriter:
    """A writer for images, uint8 [b, 3, resolution, resolution], with classes `labels` and splits `is_test`."""
    shape = (3, resolution, resolution)
    needed = len(labels) * 3 * resolution**2
    way_out = "use a lower resolution"
    shared.require_room(directory, needed, f"{len(labels):,} images", way_out)
    return SplitWriter(directory, labels, is_test, name="images", shape=shape, kind=np.uint8)


def prepared_decoded(
    cache: Path,
    kind: str,
    key: Mapping[str, Any],
    classes: tuple[str, ...],
    resolution: int,
    fill: Callable[[Path], tuple[int, int]],
    progress: Progress,
) -> tuple[Path, DecodedSummary]:
    """The directory of decoded images of (`kind`, `key`) under `cache`. `fill` makes it unless it exists.

    Args:
        key: JSON-ready; everything that determines the content.
        fill: writes the arrays of both splits into a directory; returns the numbers of images that it converted to
            RGB, and that it scaled.

    Raises:
        UserError: if `cache` is not writable or the disk is full.
    """

    def make(directory: Path) -> DecodedSummary:
        converted, resized = fill(directory)
        counts = {split: _open_images(directory, split, resolution).shape[0] for split in SPLITS}
        mean, deviation = _statistics(_open_images(directory, "train", resolution))
        return DecodedSummary(
            fingerprint=_fingerprint(directory, resolution),
            classes=classes,
            **counts,
            converted=converted,
            resized=resized,
            resolution=resolution,
            mean=mean,
            deviation=deviation,
            bytes=shared.sizes(directory),
        )

    def images(directory: Path, summary: DecodedSummary, split: str) -> int:
        return len(_decoded_split(directory, split, summary).labels)

    key = {**key, "resolution": resolution}
    return shared.prepared(cache, kind, VERSION, key, DecodedSummary, make, images, progress)


def listed_images(directory: Path, summary: ListedSummary, split: str) -> int:
    """The number of images in the arrays of `split`.

    Raises:
        UserError: if one of its files is missing or damaged.
    """
    return len(_listed_split(directory, split, summary).labels)


def write_list(directory: Path, split: str, names: Sequence[str], labels: np.ndarray) -> None:
    """Write the names of a split's files, relative to their root, and their labels."""
    np.save(directory / f"{split}_paths.npy", np.frombuffer("\0".join(names).encode(errors=_NAMES), np.uint8))
    np.save(directory / f"{split}_labels.npy", labels.astype(np.int64))


_NAMES = "surrogateescape"  # keeps file names of any bytes


def _decoded_split(directory: Path, split: str, summary: DecodedSummary) -> DecodedSplit:
    images = _open_images(directory, split, summary.resolution)
    labels = open_labels(directory, split, len(summary.classes), "classes")
    if len(images) != len(labels):
        raise damaged(directory, f"{split}_images.npy has {len(images)} images, for {len(labels)} labels")
    return DecodedSplit(images, labels)


def _listed_split(directory: Path, split: str, summary: ListedSummary) -> ListedSplit:
    blob = map_array(directory, f"{split}_paths.npy", np.uint8, 1).tobytes()
    names = blob.decode(errors=_NAMES).split("\0")
    labels = open_labels(directory, split, len(summary.classes), "classes")
    if len(names) != len(labels):
        raise damaged(directory, f"{split}_paths.npy has {len(names)} names, for {len(labels)} labels")
    return ListedSplit([Path(summary.root, name) for name in names], labels)


def _open_images(directory: Path, split: str, resolution: int) -> np.ndarray:
    images = map_array(directory, f"{split}_images.npy", np.uint8, 4)
    if images.shape[1:] != (3, resolution, resolution):
        raise damaged(directory, f"{split}_images.npy has images of {images.shape[1:]}")
    return images


def _fingerprint(directory: Path, resolution: int) -> str:
    digest = hashlib.sha256()
    for split in SPLITS:
        images = _open_images(directory, split, resolution).reshape(-1)
        for first in range(0, len(images), _HASHED):
            digest.update(np.ascontiguousarray(images[first : first + _HASHED]).data)
        digest.update(np.load(directory / f"{split}_labels.npy", allow_pickle=False).tobytes())
    return digest.hexdigest()


def _statistics(images: np.ndarray) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation of every colour, from exact counts of its levels."""
    counts = np.zeros((3, 256), np.int64)
    for first in range(0, len(images), _CHUNK):
        chunk = images[first : first + _CHUNK]
        for colour in range(3):
            counts[colour] += np.bincount(chunk[:, colour].reshape(-1), minlength=256)
    levels, total = np.arange(256), counts.sum(1)
    mean = counts @ levels / total
    deviation = np.sqrt(np.maximum(counts @ levels**2 / total - mean**2, 1.0))
    red, green, blue = map(float, mean)
    spread_red, spread_green, spread_blue = map(float, deviation)
    return (red, green, blue), (spread_red, spread_green, spread_blue)
