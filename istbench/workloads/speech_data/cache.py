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
from typing import Any, BinaryIO, Literal

import numpy as np

from istbench.errors import UserError
from istbench.workloads.base import DataSource, Progress
from istbench.workloads.speech_data.features import FEATURES, VERSION

SPLITS = ("train", "test")
_SUMMARY = "prepared.json"


@dataclass(frozen=True)
class Arrays:
    """One split, mapped read-only: features float32 [n, 4096], labels int64 [n]."""

    features: np.ndarray
    labels: np.ndarray


def open_split(directory: Path, split: str) -> Arrays:
    """Map the split "train" or "test" of a prepared directory.

    Raises:
        UserError: when a file of it is missing or damaged.
    """
    features = _load(directory, f"{split}_features.npy", mmap_mode="r")
    return Arrays(features, _load(directory, f"{split}_labels.npy"))


def open_mean(directory: Path) -> np.ndarray:
    """The mean features of the training clips of a prepared directory, float32 [4096] in dB.

    Raises:
        UserError: when the file is missing or damaged.
    """
    return _load(directory, "train_mean.npy")


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
    fill: Callable[[Path], None],
    progress: Progress,
    *,
    note: str = "",
) -> DataSource:
    """The prepared data of (`kind`, `key`) under `cache`, made by `fill(directory)` unless it is there.

    Two processes that want the same directory wait for each other: one fills it.

    Args:
        key: JSON-ready; everything that determines the content.
        fill: writes the arrays of both splits into an empty directory.

    Raises:
        UserError: when `cache` is not writable or the disk is full.
    """
    digest = hashlib.sha256(json.dumps([kind, VERSION, key], sort_keys=True).encode()).hexdigest()[:12]
    final = cache / f"{kind}-{digest}"
    if not _is_complete(final):
        with _disk_errors(cache), locked(cache / f".{final.name}.lock", progress):
            if not _is_complete(final):
                _make(final, fill)
    summary = json.loads((final / _SUMMARY).read_text())
    return DataSource(
        kind=kind,
        path=str(final.resolve()),
        fingerprint=summary["fingerprint"],
        train=summary["train"],
        test=summary["test"],
        note=note,
    )


def _load(directory: Path, name: str, mmap_mode: Literal["r"] | None = None) -> np.ndarray:
    try:
        array: np.ndarray = np.load(directory / name, mmap_mode=mmap_mode)
    except (OSError, ValueError, EOFError) as error:
        reason = f"prepared data is damaged ({error})"
        raise UserError(f"{reason}: remove {directory} to have it made again") from None
    return array


def _make(final: Path, fill: Callable[[Path], None]) -> None:
    partial = final.with_name(f".{final.name}.partial")
    for left_over in (partial, final):
        shutil.rmtree(left_over, ignore_errors=True)
    partial.mkdir()
    try:
        fill(partial)
        (partial / _SUMMARY).write_text(json.dumps(_summarise(partial), indent=1))
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _summarise(directory: Path) -> dict[str, Any]:
    fingerprint = hashlib.sha256()
    counts = {}
    for split in SPLITS:
        arrays = open_split(directory, split)
        counts[split] = len(arrays.labels)
        for array in (arrays.features, arrays.labels):
            fingerprint.update(np.ascontiguousarray(array).data)
    mean = open_split(directory, "train").features.mean(0, dtype=np.float64)
    np.save(directory / "train_mean.npy", mean.astype(np.float32))
    sizes = {path.name: path.stat().st_size for path in sorted(directory.glob("*.npy"))}
    return {"fingerprint": fingerprint.hexdigest(), **counts, "bytes": sizes}


def _is_complete(directory: Path) -> bool:
    try:
        sizes = json.loads((directory / _SUMMARY).read_text())["bytes"]
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


@contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file `path`, so that one process at a time makes what it stands for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that prepares the data", 0, 1)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
