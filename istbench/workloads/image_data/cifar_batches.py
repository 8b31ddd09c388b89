"""CIFAR-10 in its official layouts, Python pickles or binary batches, and its download."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from istbench.base.decode import read_bytes
from istbench.base.errors import UserError, printable
from istbench.workloads.base import Progress
from istbench.workloads.image_data.unpickle import NotPlainData, StoredArray, plain_data
from istbench.workloads.prepared import download, named_errors

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGES = 60_000
SIDE = 32
_PIXELS = 3 * SIDE * SIDE
_BATCH_IMAGES = 10_000
_LARGEST = 2**26
_FOLDERS = {"cifar-10-batches-py": "", "cifar-10-batches-bin": ".bin"}
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_WAY_OUT = "extract the archive again"
_TASK = "downloading CIFAR-10 (170 MB)"
_BY_HAND = "download cifar-10-python.tar.gz by other means, extract it and give the folder with --data DIR"


@dataclass(frozen=True)
class CifarBatches:
    """The six batch files in `root`, five for training and one for test; `suffix` is ".bin" for binary files."""

    root: Path
    suffix: str

    @property
    def paths(self) -> tuple[Path, ...]:
        """The batch files, with the test batch last."""
        return tuple(self.root / f"{name}{self.suffix}" for name in _BATCHES)

    @property
    def is_test(self) -> np.ndarray:
        """Whether each image is in the test split: bool [60000]."""
        return np.repeat([False] * 5 + [True], _BATCH_IMAGES)

    def cache_key(self) -> dict[str, Any]:
        """A JSON-ready key from names, sizes and times of the files.

        Raises:
            UserError: naming a missing file.
        """
        with named_errors("the batches"):
            found = [(path.name, path.stat()) for path in self.paths]
            lines = "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in found)
        return {"root": str(self.root), "files": hashlib.sha256(lines.encode()).hexdigest()}

    def read(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield images (uint8 [10000, 3, 32, 32]) and classes (int64 [10000]) of each file, without running code.

        Raises:
            UserError: naming the first broken batch.
        """
        for path in self.paths:
            content = read_bytes(path, "a batch of CIFAR-10", _LARGEST)
            images, labels = (_binary if self.suffix else _pickled)(path, content)
            if not ((labels >= 0) & (labels < len(CLASSES))).all():
                raise _unfit(path, f"it has classes outside 0 to {len(CLASSES) - 1}")
            if len(images) != _BATCH_IMAGES:
                raise _unfit(path, f"{len(images):,} images, not {_BATCH_IMAGES:,}")
            yield images.reshape(-1, 3, SIDE, SIDE), labels


def find_batches(data: Path) -> CifarBatches | None:
    """The batches of CIFAR-10 in directory `data`, or in the archive's folder there; None if there are none.

    Raises:
        UserError: if a batch file is missing.
    """
    for folder, suffix in _FOLDERS.items():
        for root in (data, data / folder):
            batches = CifarBatches(root.resolve(), suffix)
            there = [path for path in batches.paths if path.exists()]
            missing = [path for path in batches.paths if not path.exists()]
            if there and missing:
                raise UserError(f"{printable(str(root))}: no {missing[0].name} beside {there[0].name}; {_WAY_OUT}")
            if there or (root.name == folder and root.is_dir()):
                if missing:
                    raise UserError(f"{printable(str(root))}: no {missing[0].name} in it; {_WAY_OUT}")
                return batches
    return None


def _binary(path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    rows, rest = divmod(len(content), 1 + _PIXELS)
    if rest:
        raise _unfit(
            path,
            f"{len(content):,} bytes are not whole images of {1 + _PIXELS:,}: it is truncated",
        )
    table = np.frombuffer(content, np.uint8).reshape(rows, 1 + _PIXELS)
    return table[:, 1:], table[:, 0].astype(np.int64)


def _pickled(path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Names are bytes by Python 2 and texts by Python 3. Labels are Python's numbers, numpy's, or an array."""
    try:
        match plain_data(content):
            case {b"data": StoredArray() as data, b"labels": found} | {
                "data": StoredArray() as data,
                "labels": found,
            }:
                images, labels = data.integers(), _numbers(found)
            case _:
                raise NotPlainData("no dictionary with data and labels")
    except NotPlainData as problem:
        raise _unfit(path, str(problem)) from None
    if images.dtype != np.uint8 or images.shape[1:] != (_PIXELS,):
        raise _unfit(path, f"its data is not an array of bytes with {_PIXELS:,} in a row")
    if len(labels) != len(images) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise _unfit(path, f"it does not have a label for each of its {len(images):,} images")
    return images, np.array(labels, np.int64)


def _numbers(found: object) -> list[Any]:
    """The items of an array, or of a list in which numpy's numbers become Python's; none of anything else."""
    items = found.integers().tolist() if isinstance(found, StoredArray) else found
    if not isinstance(items, list):
        return []
    return [item.integers().tolist() if isinstance(item, StoredArray) else item for item in items]


def _unfit(path: Path, why: str) -> UserError:
    return UserError(f"{printable(str(path))}: not a batch of CIFAR-10: {printable(why)[:200]}; {_WAY_OUT}")


def download_cifar10(folder: Path, progress: Progress) -> Path:
    """Download CIFAR-10 (170 MB) and extract it under `folder` unless it is there; returns its directory.

    torchvision downloads the archive and checks its md5.

    Raises:
        UserError: if the network fails, the archive is not the published one, or the disk is full.
    """
    return download(
        folder, "CIFAR-10", _fetch_archive, extracted="cifar-10-batches-py", task=_TASK, way_out=_BY_HAND,
        progress=progress,
    )  # fmt: skip


def _fetch_archive(partial: Path) -> None:
    from torchvision.datasets import CIFAR10

    CIFAR10(partial, download=True)
