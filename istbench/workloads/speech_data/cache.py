"""Prepared features on disk: made once, mapped by every process.

A prepared directory holds `train_features.npy`, `train_labels.npy`, `train_mean.npy`, `test_features.npy`,
`test_labels.npy` and `prepared.json`. It is filled under another name and renamed when complete, so one with
the final name is whole, whatever was killed when.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from zipfile import BadZipFile

import msgspec
import numpy as np
from msgspec import Meta

from istbench.config.numbers import Count, Natural
from istbench.door import decode_json, read_bytes
from istbench.errors import UserError, printable
from istbench.workloads.base import Progress
from istbench.workloads.speech_data.features import FEATURES, VERSION
from istbench.workloads.speech_data.words import MOST_WORDS

SPLITS = ("train", "test")
_MEAN = "train_mean.npy"
_SUMMARY = "prepared.json"


Word = Annotated[str, Meta(min_length=1, max_length=255)]


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What prepared.json holds.

    Attributes:
        fingerprint: a hash of all features and labels.
        words: the words in the order of their labels.
        train, test: clips of each split. converted: of both, those that were not 16 kHz mono as they were.
        bytes: sizes of the files.
    """

    fingerprint: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    words: Annotated[tuple[Word, ...], Meta(min_length=2, max_length=MOST_WORDS)]
    train: Count
    test: Count
    converted: Natural
    bytes: dict[str, Natural]


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
    try:
        return _read_summary(directory)
    except UserError as error:
        raise _damaged(directory, str(error)) from None


def open_split(directory: Path, split: str, words: int) -> Arrays:
    """Map the split "train" or "test" of a prepared directory of so many words.

    Raises:
        UserError: when a file of it is missing or damaged.
    """
    features = _map(directory, f"{split}_features.npy", np.float32, 2)
    labels = np.array(_map(directory, f"{split}_labels.npy", np.int64, 1))
    if features.shape != (len(labels), FEATURES):
        raise _damaged(directory, f"{split}_features.npy has {features.shape}, for {len(labels)} labels")
    if not ((labels >= 0) & (labels < words)).all():
        raise _damaged(directory, f"{split}_labels.npy has others than {words} words")
    return Arrays(features, labels)


def open_mean(directory: Path) -> np.ndarray:
    """The mean features of the training clips of a prepared directory, float32 [4096] in dB.

    Raises:
        UserError: when the file is missing or damaged.
    """
    mean = np.array(_map(directory, _MEAN, np.float32, 1))
    if mean.shape != (FEATURES,) or not np.isfinite(mean).all():
        raise _damaged(directory, f"{_MEAN} is not {FEATURES} numbers")
    return mean


class SplitWriter:
    """Writes the features of both splits in any order, through plain writes so that a full disk is an error.

    Args:
        labels, is_test: word (int64 [n]) and split (bool [n]) of every clip; a clip keeps its place among
            those of its split.
    """

    def __init__(self, directory: Path, labels: np.ndarray, is_test: np.ndarray) -> None:
        self._is_test = is_test
        self._place = np.where(is_test, np.cumsum(is_test), np.cumsum(~is_test)) - 1
        self._files: dict[str, BinaryIO] = {}
        self._start: dict[str, int] = {}
        for split, members in zip(SPLITS, (~is_test, is_test), strict=True):
            np.save(directory / f"{split}_labels.npy", labels[members].astype(np.int64))
            self._files[split] = file = (directory / f"{split}_features.npy").open("wb")
            header = {"descr": "<f4", "fortran_order": False, "shape": (int(members.sum()), FEATURES)}
            np.lib.format.write_array_header_1_0(file, header)
            self._start[split] = file.tell()

    def write(self, first: int, features: np.ndarray) -> None:
        """Write the features (float32 [b, 4096]) of clips `first` to `first + b - 1`."""
        clips = slice(first, first + len(features))
        is_test = self._is_test[clips]
        for split, members in zip(SPLITS, (~is_test, is_test), strict=True):
            if members.any():
                file = self._files[split]
                # Clips that follow each other do so within their split too: one run.
                file.seek(self._start[split] + int(self._place[clips][members][0]) * FEATURES * 4)
                file.write(np.ascontiguousarray(features[members], "<f4").tobytes())

    def close(self) -> None:
        """Close the files, everything on disk."""
        for file in self._files.values():
            with file:
                file.flush()
                os.fsync(file.fileno())


def prepared(
    cache: Path,
    kind: str,
    key: Mapping[str, Any],
    words: tuple[str, ...],
    fill: Callable[[Path], int],
    progress: Progress,
) -> tuple[Path, Summary]:
    """The prepared directory of (`kind`, `key`) under `cache`, made by `fill(directory)` unless it is there.

    Two processes that want the same directory wait for each other: one fills it.

    Args:
        key: JSON-ready; everything that determines the content.
        words: in the order of their labels.
        fill: writes the arrays of both splits into an empty directory; returns how many clips it converted.

    Raises:
        UserError: when `cache` is not writable or the disk is full.
    """
    digest = hashlib.sha256(json.dumps([kind, VERSION, key], sort_keys=True).encode()).hexdigest()[:12]
    final = cache / f"{kind}-{digest}"
    summary = _summary_of(final)
    if summary is None:
        with _disk_errors(cache), locked(cache / f".{final.name}.lock", progress):
            summary = _summary_of(final) or _make(final, words, fill)
    return final.resolve(), summary


def require_room(directory: Path, clips: int, way_out: str) -> None:
    """Refuse features of `clips` clips in `directory` where its disk cannot hold them; `way_out` is of the caller.

    Raises:
        UserError: saying what they take and what there is.
    """
    needed, disk = clips * FEATURES * 4, shutil.disk_usage(directory)
    if disk.total and disk.free < needed:
        raise UserError(
            f"the prepared data of {clips:,} clips takes {needed / 1e9:.1f} GB, and there is "
            f"{disk.free / 1e9:.1f} GB free in {directory.parent}; {way_out}, or choose another cache directory "
            "with ISTBENCH_CACHE"
        )


def _map(directory: Path, name: str, kind: type, dimensions: int) -> np.ndarray:
    """The array in file `name`, mapped read-only, of type `kind`."""
    path = directory / name
    try:
        if not path.is_file():  # a FIFO would hang the open
            raise _damaged(directory, f"{name} is no file" if os.path.lexists(path) else f"no {name}")
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, TypeError, EOFError, OverflowError, MemoryError, BadZipFile) as error:
        raise _damaged(directory, f"{name}: {error}") from None
    if not isinstance(array, np.ndarray) or (array.dtype, array.ndim) != (np.dtype(kind), dimensions):
        raise _damaged(directory, f"{name} is of another type")
    return array


def _damaged(directory: Path, why: str) -> UserError:
    return UserError(f"prepared data is damaged ({printable(why)}): remove {directory} to have it made again")


def _make(final: Path, words: tuple[str, ...], fill: Callable[[Path], int]) -> Summary:
    partial = final.with_name(f".{final.name}.partial")
    for left_over in (partial, final):
        _remove(left_over)
    partial.mkdir()
    try:
        converted = fill(partial)
        summary = _summarise(partial, words, converted)
        (partial / _SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1))
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return summary


def _remove(path: Path) -> None:
    """Delete whatever is at `path`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
        fingerprint=fingerprint.hexdigest(), words=words, **counts, converted=converted, bytes=_sizes(directory)
    )


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(directory.glob("*.npy"))}


def _read_summary(directory: Path) -> Summary:
    content = read_bytes(directory / _SUMMARY, "a summary")
    return decode_json(content, Summary, str(directory / _SUMMARY), "it is made again")


def _summary_of(directory: Path) -> Summary | None:
    """The summary of a whole directory; None of one where anything is missing, or is not what the summary says."""
    try:
        summary = _read_summary(directory)
        counts = {split: len(open_split(directory, split, len(summary.words)).labels) for split in SPLITS}
        open_mean(directory)
        as_said = (summary.train, summary.test, summary.bytes) == (*counts.values(), _sizes(directory))
    except (UserError, OSError):
        return None
    return summary if as_said else None


@contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file `path`, so that one process at a time makes what it stands for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # For reading too: a FIFO would hang an open for writing alone.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that prepares the data", 0, 1)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _disk_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else error.strerror or error
        raise UserError(
            f"cannot write prepared data to {cache}: {reason}; "
            "make room there, or choose another cache directory with ISTBENCH_CACHE"
        ) from None
