"""Prepare a directory from a user's images or from synthetic ones, and open it.

All files are decoded once, to find and name the broken ones before training. A directory of decoded images, which
every process maps, holds `train_images.npy`, `train_labels.npy`, the same for the test split, and `prepared.json`.
A directory of listed files, which are decoded for each batch, has `train_paths.npy` in place of the images.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from istbench.base.errors import UserError, printable
from istbench.base.machine import cores
from istbench.base.options.numbers import Natural
from istbench.workloads.base import DataSource, ShowProgress
from istbench.workloads.image_data.cifar_batches import CLASSES, IMAGES, SIDE, CifarBatches
from istbench.workloads.image_data.decode import BrokenImage, Pixels, read_file, scaled, whole
from istbench.workloads.image_data.folders import MOST_CLASSES, ImageFiles
from istbench.workloads.image_data.synthetic import CLASSES as TEXTURES
from istbench.workloads.image_data.synthetic import Textures
from istbench.workloads.prepared import (
    SPLITS,
    Chunk,
    Labelled,
    Summary,
    damaged,
    in_order,
    labelled,
    map_array,
    open_summary,
    prepared,
    require_room,
    source_of,
    utf8_name,
    write_samples,
)

VERSION = 3
"""Part of every cache key. Raise it when the pixels of an image or the other arrays change."""
LARGEST_DECODED = 64
"""Images up to this resolution are stored decoded."""

SYNTHETIC_NOTE = (
    "synthetic image data: random textures, not photographs "
    "(for these: --data DIR, or `istbench data cifar10 --source download`)"
)
_CHUNK = 256  # images that a thread decodes at a time
_SHOWN = 3  # names of broken images
_TASK = "images decoded"
_COUNTED = 4_096  # images whose levels are counted at a time
_NAMES = "surrogateescape"  # keeps file names of any bytes

ClassName = Annotated[str, Meta(min_length=1, max_length=255)]
Level = Annotated[float, Meta(ge=0, le=255)]
Spread = Annotated[float, Meta(ge=1, le=255)]


class _Summary(Summary, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


def open_classes(directory: Path) -> tuple[str, ...]:
    """The classes of a prepared directory of either kind, in the order of their labels.

    Raises:
        UserError: if its summary is missing or damaged.
    """
    kind = DecodedSummary if (directory / "train_images.npy").exists() else ListedSummary
    return open_summary(directory, kind).classes


def _prepared_decoded(
    cache: Path,
    kind: str,
    key: Mapping[str, Any],
    classes: tuple[str, ...],
    resolution: int,
    count: int,
    chunks: Iterable[Chunk],
    progress: ShowProgress,
    *,
    name: str,
    scan: "Scan | None" = None,
    note: str = "",
    whole: int | None = None,
    way_out: str = "use a lower resolution",
) -> DataSource:
    """The decoded images of (`kind`, `key`) under `cache`; made of `count` images in `chunks` unless it exists.

    Args:
        key: JSON-ready; everything that determines the content.
        scan: counts the images of `chunks` that it converts to RGB, and that it scales.
        name, note, whole: as in `DataSource`; the note is by default on conversions.
        way_out: of the error for a disk without room.
    """

    def make(directory: Path) -> DecodedSummary:
        require_room(directory, count * 3 * resolution**2, f"{count:,} images", way_out)
        written = write_samples(directory, "images", np.uint8, (3, resolution, resolution), chunks)
        mean, deviation = _statistics(_open_images(directory, "train", resolution))
        return DecodedSummary(
            **written,
            classes=classes,
            converted=scan.converted if scan else 0,
            resized=scan.resized if scan else 0,
            resolution=resolution,
            mean=mean,
            deviation=deviation,
        )

    key = {**key, "resolution": resolution}
    path, summary = prepared(cache, kind, VERSION, key, DecodedSummary, make, open_decoded, progress)
    note = note or _conversions(summary)
    return source_of(path, summary, kind=kind, name=name, unit="images", note=note, whole=whole)


def open_decoded(directory: Path, summary: DecodedSummary, split: str) -> Labelled:
    """Map `split` of decoded images: uint8 [n, 3, resolution, resolution]; raises as `map_array`."""
    images = _open_images(directory, split, summary.resolution)
    return labelled(directory, split, images, len(summary.classes), "classes")


def open_listed(directory: Path, summary: ListedSummary, split: str) -> Labelled:
    """The paths of the images of `split`; raises as `map_array`."""
    blob = map_array(directory, f"{split}_paths.npy", np.uint8, 1).tobytes()
    paths = [Path(summary.root, name) for name in blob.decode(errors=_NAMES).split("\0")]
    return labelled(directory, split, paths, len(summary.classes), "classes")


def _open_images(directory: Path, split: str, resolution: int) -> np.ndarray:
    images = map_array(directory, f"{split}_images.npy", np.uint8, 4)
    if images.shape[1:] != (3, resolution, resolution):
        raise damaged(directory, f"{split}_images.npy has images of {images.shape[1:]}")
    return images


def _statistics(images: np.ndarray) -> tuple[Any, Any]:
    """Mean and standard deviation of every colour, from exact counts of its levels."""
    counts = np.zeros((3, 256), np.int64)
    for first in range(0, len(images), _COUNTED):
        chunk = images[first : first + _COUNTED]
        for colour in range(3):
            counts[colour] += np.bincount(chunk[:, colour].reshape(-1), minlength=256)
    levels, total = np.arange(256), counts.sum(1)
    mean = counts @ levels / total
    deviation = np.sqrt(np.maximum(counts @ levels**2 / total - mean**2, 1.0))
    return tuple(mean.tolist()), tuple(deviation.tolist())


def prepare_decoded(
    files: ImageFiles, resolution: int, cache: Path, progress: ShowProgress, *, official: bool = False
) -> DataSource:
    """Decode image files at `resolution` into `cache`; `official` means that they are CIFAR-10's images.

    Raises:
        UserError: naming the broken images, or for a cache that is not writable.
    """
    scan = Scan(files, lambda content: scaled(content, resolution), progress)
    return _prepared_decoded(
        cache,
        "cifar10_files" if official else "image_folders",
        files.cache_key(),
        files.classes,
        resolution,
        len(files.paths),
        scan.chunks(),
        progress,
        name=f"CIFAR-10 as files in {files.shown_name}" if official else f"images in {files.shown_name}",
        scan=scan,
        whole=IMAGES if official else None,
    )


def prepare_listed(files: ImageFiles, cache: Path, progress: ShowProgress) -> DataSource:
    """Decode all image files once as a check, and list them under `cache`.

    Raises:
        UserError: naming the broken images; for a folder name that is not UTF-8, or a cache that is not writable.
    """
    root = utf8_name(str(files.root), files.root, "the images' folder, or of one above it,")

    def make(directory: Path) -> ListedSummary:
        scan = Scan(files, whole, progress)
        for _ in scan.chunks():
            pass
        for split, members in zip(SPLITS, (~files.is_test, files.is_test), strict=True):
            names = [str(files.paths[place].relative_to(files.root)) for place in np.flatnonzero(members).tolist()]
            blob = "\0".join(names).encode(errors=_NAMES)
            np.save(directory / f"{split}_paths.npy", np.frombuffer(blob, np.uint8))
            np.save(directory / f"{split}_labels.npy", files.labels[members].astype(np.int64))
        tests = int(files.is_test.sum())
        return ListedSummary(
            fingerprint=scan.fingerprint,
            classes=files.classes,
            train=len(files.labels) - tests,
            test=tests,
            converted=scan.converted,
            root=root,
        )

    key = files.cache_key()
    path, summary = prepared(cache, "image_files", VERSION, key, ListedSummary, make, open_listed, progress)
    name, note = f"images in {files.shown_name}", _conversions(summary)
    return source_of(path, summary, kind="image_folders", name=name, unit="images", note=note)


def prepare_batches(batches: CifarBatches, cache: Path, progress: ShowProgress) -> DataSource:
    """Prepare CIFAR-10 from its official batch files under `cache`.

    Raises:
        UserError: naming a broken batch file, or for a cache that is not writable.
    """
    key, chunks = batches.cache_key(), batches.chunks(progress)
    return _prepared_decoded(
        cache, "cifar10", key, CLASSES, SIDE, IMAGES, chunks, progress, name="CIFAR-10", whole=IMAGES,
        way_out="make room there",
    )  # fmt: skip


def prepare_textures(textures: Textures, cache: Path, progress: ShowProgress) -> DataSource:
    """Prepare the synthetic images of `textures` under `cache`.

    Raises:
        UserError: for a cache that is not writable.
    """
    return _prepared_decoded(
        cache,
        "synthetic",
        asdict(textures),
        TEXTURES,
        SIDE,
        textures.train + textures.test,
        textures.chunks(progress),
        progress,
        name="SYNTHETIC images",
        note=SYNTHETIC_NOTE,
        way_out="use fewer images",
    )


def _conversions(summary: DecodedSummary | ListedSummary) -> str:
    images = f"of {summary.train + summary.test:,} images"
    notes = []
    if summary.converted:
        notes.append(f"{summary.converted:,} {images} were converted to RGB")
    if isinstance(summary, DecodedSummary) and summary.resized:
        side = summary.resolution
        notes.append(f"{summary.resized:,} {images} were scaled and cut to {side} x {side}")
    return "; ".join(notes)


class Scan:
    """Decodes every image of `files` with `decode`, in one thread per core.

    converted, resized: numbers of images so far that were not RGB, or had another size.
    """

    def __init__(self, files: ImageFiles, decode: Callable[[bytes], Pixels], progress: ShowProgress) -> None:
        self._files, self._decode, self._progress = files, decode, progress
        self._digest = hashlib.sha256(files.labels.tobytes() + files.is_test.tobytes())
        self.converted = self.resized = 0

    @property
    def fingerprint(self) -> str:
        """A hash of the files' content, labels and splits, complete after the last chunk."""
        return self._digest.hexdigest()

    def chunks(self) -> Iterator[Chunk]:
        """Yield the images in order, uint8 [b, 3, h, w], in chunks.

        After a broken image it yields no more chunks, but checks all other images.

        Raises:
            UserError: at the end, with the number of broken images and the names of the first.
        """
        total, broken = len(self._files.paths), list[str]()
        self._progress(_TASK, 0, total)
        firsts = range(0, total, _CHUNK)
        for first, chunk in zip(firsts, in_order(cores(), self._chunk, firsts), strict=True):
            found, names, digest = chunk
            broken += names
            self.converted += sum(pixels.converted for pixels in found)
            self.resized += sum(pixels.resized for pixels in found)
            self._digest.update(digest)
            if not broken:
                own = slice(first, first + _CHUNK)
                images = np.stack([pixels.image for pixels in found])
                yield images, self._files.labels[own], self._files.is_test[own]
            self._progress(_TASK, min(first + _CHUNK, total), total)
        if broken:
            more = f" and {len(broken) - _SHOWN:,} more" if len(broken) > _SHOWN else ""
            raise UserError(
                f"{len(broken):,} of {total:,} images cannot be decoded: {', '.join(broken[:_SHOWN])}{more}; "
                "replace or remove them"
            )

    def _chunk(self, first: int) -> tuple[list[Pixels], list[str], bytes]:
        """Images from `first` on: decoded pixels, names of broken files, and a hash of the files."""
        found, broken, digest = list[Pixels](), list[str](), hashlib.sha256()
        for path in self._files.paths[first : first + _CHUNK]:
            try:
                content = read_file(path)
                found.append(self._decode(content))
                digest.update(hashlib.sha256(content).digest())
            except BrokenImage as why:
                broken.append(f"{printable(str(path))} ({why})")
        return found, broken, digest.digest()
