"""The arrays of a prepared directory. One process writes them in any order; every process maps them read-only."""

import os
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

import numpy as np

from istbench.workloads.prepared.directory import SPLITS, damaged


class SplitWriter:
    """Writes the samples of both splits in any order. It uses plain writes, so a full disk raises an error.

    The files are `train_NAME.npy`, `test_NAME.npy` and the labels of both.

    Args:
        labels, is_test: label (int64 [n]) and split (bool [n]) of every sample. Samples keep their order in a
            split.
        name: NAME of the arrays. shape, kind: shape and type of one sample.
    """

    def __init__(
        self,
        directory: Path,
        labels: np.ndarray,
        is_test: np.ndarray,
        *,
        name: str,
        shape: tuple[int, ...],
        kind: type,
    ) -> None:
        self._is_test, self._kind = is_test, np.dtype(kind)
        self._place = np.where(is_test, np.cumsum(is_test), np.cumsum(~is_test)) - 1
        self._sample_bytes = int(np.prod(shape, dtype=np.int64)) * self._kind.itemsize
        self._files: dict[str, BinaryIO] = {}
        self._start: dict[str, int] = {}
        for split, members in zip(SPLITS, (~is_test, is_test), strict=True):
            np.save(directory / f"{split}_labels.npy", labels[members].astype(np.int64))
            self._files[split] = file = (directory / f"{split}_{name}.npy").open("wb")
            header = {"descr": self._kind.str, "fortran_order": False, "shape": (int(members.sum()), *shape)}
            np.lib.format.write_array_header_1_0(file, header)
            self._start[split] = file.tell()

    def write(self, first: int, samples: np.ndarray) -> None:
        """Write samples `first` to `first + b - 1` ([b, *shape])."""
        chunk = slice(first, first + len(samples))
        is_test = self._is_test[chunk]
        for split, members in zip(SPLITS, (~is_test, is_test), strict=True):
            if members.any():
                file = self._files[split]
                # Consecutive samples are consecutive within their split too: one write.
                file.seek(self._start[split] + int(self._place[chunk][members][0]) * self._sample_bytes)
                file.write(np.ascontiguousarray(samples[members], self._kind).tobytes())

    def close(self) -> None:
        """Flush the files to disk and close them."""
        for file in self._files.values():
            with file:
                file.flush()
                os.fsync(file.fileno())


def map_array(directory: Path, name: str, kind: type, dimensions: int) -> np.ndarray:
    """The array in file `name` of a prepared directory, mapped read-only, of type `kind`.

    Raises:
        UserError: if it is missing or damaged.
    """
    path = directory / name
    try:
        if not path.is_file():  # a FIFO would hang the open
            raise damaged(directory, f"{name} is not a file" if os.path.lexists(path) else f"no {name}")
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, TypeError, EOFError, OverflowError, MemoryError, BadZipFile) as error:
        raise damaged(directory, f"{name}: {error}") from None
    if not isinstance(array, np.ndarray) or (array.dtype, array.ndim) != (np.dtype(kind), dimensions):
        raise damaged(directory, f"{name} is of another type")
    return array


def open_labels(directory: Path, split: str, classes: int, what: str) -> np.ndarray:
    """The labels of `split`, int64 [n] in memory, all below `classes`; `what` names the classes in errors.

    Raises:
        UserError: if they are missing or damaged.
    """
    labels = np.array(map_array(directory, f"{split}_labels.npy", np.int64, 1))
    if not ((labels >= 0) & (labels < classes)).all():
        raise damaged(directory, f"{split}_labels.npy has labels outside its {classes} {what}")
    return labels
