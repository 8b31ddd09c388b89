"""CIFAR-10 in its official layouts, Python pickles or binary batches, and its download."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from istbench.base.decode import read_bytes
from istbench.base.errors import UserError, printable
from istbench.base.files import kind_at
from istbench.workloads.base import ShowProgress
from istbench.workloads.image_data.unpickle import NotPlainData, StoredArray, plain_data
from istbench.workloads.prepared import Chunk, Download, files_digest

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGES = 60_000
SIDE = 32
_PIXELS = 3 * SIDE * SIDE
_BATCH_IMAGES = 10_000
_LARGEST = 2**26
_FOLDERS = {"cifar-10-batches-py": "", "cifar-10-batches-bin": ".bin"}
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_WHAT = "a batch of CIFAR-10"
_WAY_OUT = "extract the archive again"


@dataclass(frozen=True)
class CifarBatches:
    """The six batch files in `root`, five for training and one for test; `suffix` is ".bin" for binary files."""

    root: Path
    suffix: str

    @property
    def paths(self) -> tuple[Path, ...]:
        """The batch files, with the test batch last."""
        return tuple(self.root / f"{name}{self.suffix}" for name in _BATCHES)

    def cache_key(self) -> dict[str, Any]:
        """A JSON-ready key from names, sizes and times of the files; raises as `files_digest`."""
        return {"root": str(self.root), "files": files_digest(self.root, self.paths, _WHAT)}

    def chunks(self, progress: ShowProgress) -> Iterator[Chunk]:
        """Yield the images (uint8 [10000, 3, 32, 32]) of each file, without running code.

        Raises:
            UserError: naming the first broken batch.
        """
        for number, path in enumerate(self.paths, start=1):
            content = read_bytes(path, _WHAT, _LARGEST)
            images, labels = (_binary if self.suffix else _pickled)(path, content)
            if not ((labels >= 0) & (labels < len(CLASSES))).all():
                raise _unfit(path, f"it has classes outside 0 to {len(CLASSES) - 1}")
            if len(images) != _BATCH_IMAGES:
                raise _unfit(path, f"{len(images):,} images, not {_BATCH_IMAGES:,}")
            yield images.reshape(-1, 3, SIDE, SIDE), labels, np.full(len(images), number == len(self.paths))
            progress("CIFAR-10 batches read", number, len(self.paths))


def find_batches(data: Path) -> CifarBatches | None:
    """The batches of CIFAR-10 in directory `data`, or in the archive's folder there; None if there are none.

    Raises:
        UserError: if a batch file is missing.
    """
    for folder, suffix in _FOLDERS.items():
        for root in (data, data / folder):
            batches = CifarBatches(root.resolve(), suffix)
            there = [path for path in batches.paths if kind_at(path)]
            missing = [path for path in batches.paths if path not in there]
            if there or (root.name == folder and kind_at(root) == "directory"):
                if missing:
                    where = f"beside {there[0].name}" if there else "in it"
                    raise UserError(f"{printable(str(root))}: no {missing[0].name} {where}; {_WAY_OUT}")
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


def _fetch_archive(partial: Path) -> None:  # torchvision checks its md5
    from torchvision.datasets import CIFAR10

    CIFAR10(partial, download=True)


PUBLISHED = Download(
    name="CIFAR-10",
    size="170 MB",
    archive="cifar-10-python.tar.gz",
    extracted="cifar-10-batches-py",
    fetch=_fetch_archive,
)
