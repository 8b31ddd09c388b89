"""Data of all workloads: find it, prepare it once, map it, name broken files.

A prepared directory has arrays and a summary. A process fills it under another name and renames it at the end. So a
directory with the final name is complete, whenever a process was killed. Its summary, `prepared.json`, has the size
of every array.
"""

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tarfile
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar
from zipfile import BadZipFile

import msgspec
import numpy as np
from msgspec import Meta

from istbench.base.decode import decode_json, read_bytes
from istbench.base.errors import UserError, printable
from istbench.base.files import is_full, sync
from istbench.base.options.data_source import DataSource
from istbench.base.options.numbers import Count, Natural
from istbench.workloads.base import ShowProgress, Workload

SPLITS = ("train", "test")
_SUMMARY = "prepared.json"
_COMPLETE, _PARTIAL = "original", "original.partial"  # of a download


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of prepared.json for any workload; each workload adds fields.

    Attributes:
        fingerprint: a hash of all training and test data.
        train, test: samples of each split.
        bytes: sizes of the arrays; `prepared` fills them in.
    """

    fingerprint: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    train: Count
    test: Count
    bytes: dict[str, Natural] = {}


S = TypeVar("S", bound=Summary)
T = TypeVar("T")
R = TypeVar("R")


def prepared(
    cache: Path,
    kind: str,
    version: int,
    key: Mapping[str, Any],
    content: type[S],
    make: Callable[[Path], S],
    open_split: Callable[[Path, S, str], Sized],
    progress: ShowProgress,
) -> tuple[Path, S]:
    """The resolved path and the summary of the prepared directory of `kind` and `key` under `cache`.

    A directory that is missing or incomplete is made. If two processes need it, one fills it and the other waits.

    Args:
        version, key: determine the content with `kind`; `key` is JSON-ready.
        content: the type of the summary.
        make: fills an empty directory with arrays; returns its summary.
        open_split: opens the arrays of a split; raises UserError or OSError if one is missing or damaged.

    Raises:
        UserError: if `cache` is not writable or the disk is full; and errors of `make`.
    """
    text = json.dumps([kind, version, key], sort_keys=True)
    final = cache / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    summary = _whole(final, content, open_split)
    if summary is None:
        try:
            with locked(final.with_name(f".{final.name}.lock"), progress):
                summary = _whole(final, content, open_split) or _make(final, make)
        except OSError as error:
            reason = "the disk is full" if is_full(error) else error.strerror or error
            raise UserError(
                f"cannot write prepared data to {cache}: {reason}; "
                "make room there, or choose another cache directory with ISTBENCH_CACHE"
            ) from None
    return final.resolve(), summary


def open_summary(directory: Path, content: type[S]) -> S:
    """The summary of a prepared directory.

    Raises:
        UserError: if it is missing or damaged.
    """
    path = directory / _SUMMARY
    try:
        return decode_json(read_bytes(path, "a summary"), content, str(path), "it is made again")
    except UserError as error:
        raise damaged(directory, str(error)) from None


def source_of(
    path: Path, summary: Summary, *, kind: str, name: str, unit: str, note: str = "", whole: int | None = None
) -> DataSource:
    """The `DataSource` of the prepared directory `path`, for the run header."""
    return DataSource(
        kind=kind,
        path=str(path),
        fingerprint=summary.fingerprint,
        train=summary.train,
        test=summary.test,
        note=note,
        name=name,
        unit=unit,
        whole=whole,
    )


def _sizes(directory: Path) -> dict[str, int]:
    """The size of every array in `directory`."""
    return {path.name: path.stat().st_size for path in sorted(directory.glob("*.npy"))}


def fingerprint(directory: Path, names: Iterable[str], facts: str = "") -> str:
    """A hash of `facts` and of the values in the arrays `names` of `directory`."""
    digest = hashlib.sha256(facts.encode())
    for name in names:
        digest.update(np.load(directory / name, mmap_mode="r", allow_pickle=False).data)
    return digest.hexdigest()


def damaged(directory: Path, why: str) -> UserError:
    """The error for a damaged prepared directory."""
    return UserError(
        f"prepared data is damaged ({printable(why)}): remove {directory}, and istbench makes it again"
    )


def require_room(directory: Path, needed: int, what: str, way_out: str) -> None:
    """Check that the disk of `directory` has `needed` free bytes for `what`; `way_out` ends the error.

    Raises:
        UserError: naming the needed and the free bytes.
    """
    disk = shutil.disk_usage(directory)
    if disk.total and disk.free < needed:
        raise UserError(
            f"the prepared data of {what} takes {needed / 1e9:.1f} GB, but only "
            f"{disk.free / 1e9:.1f} GB are free in {directory.parent}; {way_out}, or choose another cache "
            "directory with ISTBENCH_CACHE"
        )


@contextmanager
def locked(path: Path, progress: ShowProgress) -> Iterator[None]:
    """Hold the lock file `path`. One process at a time can hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Also for reading: on a FIFO, an open only for writing would hang.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting = "waiting for another process to prepare the data"
            progress(waiting, 0, 1)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            progress(waiting, 1, 1)
        yield
    finally:
        os.close(descriptor)


def _whole(directory: Path, content: type[S], open_split: Callable[[Path, S, str], Sized]) -> S | None:
    """The summary of a complete directory; None if a file is missing, or has another size or other samples."""
    try:
        summary = open_summary(directory, content)
        counts = tuple(len(open_split(directory, summary, split)) for split in SPLITS)
        return summary if (summary.bytes, summary.train, summary.test) == (_sizes(directory), *counts) else None
    except (UserError, OSError):
        return None


def _make(final: Path, make: Callable[[Path], S]) -> S:
    partial = final.with_name(f".{final.name}.partial")
    for left_over in (partial, final):
        if left_over.is_dir() and not left_over.is_symlink():
            shutil.rmtree(left_over)
        else:
            left_over.unlink(missing_ok=True)
    partial.mkdir()
    try:
        summary = msgspec.structs.replace(make(partial), bytes=_sizes(partial))
        (partial / _SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1))
        sync(partial / _SUMMARY)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return summary


class ArrayWriter:
    """Appends rows of `shape` to a new array file. It uses plain writes, so a full disk raises an error."""

    def __init__(self, path: Path, kind: type, shape: tuple[int, ...] = ()) -> None:
        self.length = 0
        self._kind, self._shape, self._file = np.dtype(kind), shape, path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        """Write a header of the same size for any length: numpy leaves room for an array to grow."""
        header = {"descr": self._kind.str, "fortran_order": False, "shape": (self.length, *self._shape)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, rows: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(rows, self._kind).tobytes())
        self.length += len(rows)

    def close(self) -> None:
        """Write the final header, flush the file to disk and close it."""
        with self._file:
            self._file.seek(0)
            self._write_header()
            self._file.flush()
            os.fsync(self._file.fileno())


Chunk = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Samples [b, ...] in their order, their labels int64 [b], and whether each is in the test split, bool [b]."""


def write_samples(
    directory: Path, name: str, kind: type, shape: tuple[int, ...], chunks: Iterable[Chunk]
) -> dict[str, Any]:
    """Write samples of `shape` to `train_NAME.npy` and `test_NAME.npy`, and their labels to `SPLIT_labels.npy`.

    Returns the fields of `Summary` on them.
    """
    labels: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    with ExitStack() as stack:
        paths = [directory / f"{split}_{name}.npy" for split in SPLITS]
        files = [stack.enter_context(closing(ArrayWriter(path, kind, shape))) for path in paths]
        for samples, own, is_test in chunks:
            for file, kept, members in zip(files, labels, (~is_test, is_test), strict=True):
                file.append(samples[members])
                kept.append(own[members])
    for split, kept in zip(SPLITS, labels, strict=True):
        np.save(directory / f"{split}_labels.npy", np.concatenate(kept).astype(np.int64))
    names = [f"{split}_{part}.npy" for split in SPLITS for part in (name, "labels")]
    train, test = (file.length for file in files)
    return {"fingerprint": fingerprint(directory, names), "train": train, "test": test}


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


@dataclass(frozen=True)
class Labelled:
    """The samples of a split by number, such as a mapped array, and their labels int64 [n]."""

    samples: Any
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def labelled(directory: Path, split: str, samples: Sized, classes: int, what: str) -> Labelled:
    """The `samples` of `split` with their labels, all below `classes`; `what` names the classes in errors.

    Raises:
        UserError: if the labels are missing or damaged, or of another number.
    """
    labels = np.array(map_array(directory, f"{split}_labels.npy", np.int64, 1))
    if not ((labels >= 0) & (labels < classes)).all():
        raise damaged(directory, f"{split}_labels.npy has labels outside its {classes} {what}")
    if len(samples) != len(labels):
        raise damaged(directory, f"{split} has {len(samples)} samples, for {len(labels)} labels")
    return Labelled(samples, labels)


class Sourced(Workload):
    """A workload of given or downloaded data, which makes synthetic data without them."""

    sources: ClassVar[tuple[str, ...]] = ("synthetic", "download")
    published: ClassVar["Download"]

    def prepare(self, data: Path | None, cache: Path, progress: ShowProgress) -> DataSource:
        """The data in directory `data`, the downloaded data in `cache`, or synthetic data.

        Raises:
            UserError: for a directory in the wrong layout, a broken file (naming it), or a `cache` that is not
                writable.
        """
        real = data if data is not None else downloaded(cache / self.name)
        source = self._prepared(real, cache / self.name, progress)
        self._learn(source)
        return source

    def fetch(self, source: str, cache: Path, progress: ShowProgress) -> DataSource:
        """Fill `cache` from `source`, one of `sources`, for later runs without --data.

        Raises:
            UserError: for a failed download, and as `prepare`.
        """
        folder = cache / self.name
        real = self._download(folder, progress) if source == "download" else None
        return self._prepared(real, folder, progress)

    def _download(self, folder: Path, progress: ShowProgress) -> Path:
        """Download the data to `folder` unless it is there; returns its directory."""
        return download(self.published, folder, progress)

    @abstractmethod
    def _prepared(self, data: Path | None, folder: Path, progress: ShowProgress) -> DataSource:
        """Prepare the data in directory `data`, or synthetic data, in `folder`."""

    @abstractmethod
    def _learn(self, source: DataSource) -> object:
        """Set the sizes of the model and the targets from `source`."""


def downloaded(folder: Path) -> Path | None:
    """The directory of the extracted archive under `folder`, or None if there is none."""
    complete = folder / _COMPLETE
    return complete if complete.is_dir() else None


@dataclass(frozen=True, kw_only=True)
class Download:
    """A published data set.

    Attributes:
        name: for readers. size: of the archive, such as "170 MB". archive: its name.
        fetch: downloads the archive into a directory, checks it, and extracts it there as the folder `extracted`.
    """

    name: str
    size: str
    archive: str
    extracted: str
    fetch: Callable[[Path], None]


def download(data_set: Download, folder: Path, progress: ShowProgress) -> Path:
    """Download and extract `data_set` under `folder` unless it is there; returns its directory.

    After an interruption, `fetch` continues with its earlier archive and extracts it again.

    Raises:
        UserError: if the network fails, the archive is not the published one, or the disk is full.
    """
    complete = downloaded(folder)
    if complete is not None:
        return complete
    task = f"downloading {data_set.name} ({data_set.size})"
    progress(task, 0, 1)
    try:
        with locked(folder / ".original.lock", progress):
            # Another process may have been faster.
            if downloaded(folder) is None:
                partial = folder / _PARTIAL
                partial.mkdir(exist_ok=True)
                shutil.rmtree(partial / data_set.extracted, ignore_errors=True)  # of an interruption
                with _filtered_archives():
                    data_set.fetch(partial)
                for archive in partial.glob("*.tar.gz"):
                    archive.unlink()
                partial.rename(folder / _COMPLETE)
    except (OSError, EOFError, RuntimeError, HTTPException, tarfile.TarError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{data_set.name} could not be downloaded to {folder}: {reason}; download {data_set.archive} by other "
            "means, extract it and give the folder with --data DIR"
        ) from None
    progress(task, 1, 1)
    return folder / _COMPLETE


@contextmanager
def _filtered_archives() -> Iterator[None]:
    """Let libraries that name no filter extract nothing out of their folder, as Python does from 3.14 on."""
    before = vars(tarfile.TarFile).get("extraction_filter")
    if data_filter := getattr(tarfile, "data_filter", None):  # Python before 3.11.4 has none
        tarfile.TarFile.extraction_filter = staticmethod(data_filter)
    try:
        yield
    finally:
        tarfile.TarFile.extraction_filter = before


def files_digest(root: Path, paths: Sequence[Path], what: str, marks: np.ndarray | None = None) -> str:
    """A hash of the files' names under `root`, sizes, times and integer `marks`, to detect changes.

    `what` names the expected kind of file in errors.

    Raises:
        UserError: naming the first path that is missing or not a regular file.
    """
    digest = hashlib.sha256()
    with named_errors(str(root)):
        for path, mark in zip(paths, [0] * len(paths) if marks is None else marks.tolist(), strict=True):
            found = path.stat()
            require_regular(path, found, what)
            line = f"{path.relative_to(root)} {found.st_size} {found.st_mtime_ns} {int(mark)}\n"
            digest.update(os.fsencode(line))
    return digest.hexdigest()


def require_regular(path: Path, found: os.stat_result, what: str) -> None:
    """Refuse a `path` that is not a regular file, by its stat result `found`; `what` names the expected kind.

    Raises:
        UserError: naming it.
    """
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "a pipe, socket or device"
        raise UserError(
            f"{printable(str(path))}: cannot be read as {what} ({kind}, not a file); replace the file or remove it"
        )


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """Turn an OSError inside into a UserError that names its file, or `what` if the error has no file.

    Raises:
        UserError: for an OSError inside.
    """
    try:
        yield
    except OSError as error:
        name = what if error.filename is None else os.fsdecode(error.filename)
        raise UserError(f"{printable(name)}: {error.strerror or error}; make it readable or remove it") from None


def visible(folder: Path) -> Iterator[Path]:
    """The entries of `folder` that are not hidden.

    Raises:
        OSError: if the folder cannot be read.
    """
    return (path for path in folder.iterdir() if not path.name.startswith("."))


def utf8_name(name: str, folder: Path, what: str) -> str:
    """The file name `name` in `folder`, if it is valid UTF-8; `what` names its kind in errors.

    Raises:
        UserError: if it is not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        where = printable(str(folder / name))
        raise UserError(f"{where}: the name of {what} must be text in UTF-8; rename it") from None
    return name


def listed(folders: Sequence[Path | str], most: int = 4) -> str:
    """The first `most` of `folders`, and the number of others."""
    more = f" and {len(folders) - most} more" if len(folders) > most else ""
    return printable(", ".join(map(str, folders[:most]))) + more


def in_order(threads: int, work: Callable[[T], R], items: Iterable[T], ahead: int = 2) -> Iterator[R]:
    """`work(item)` for each of `items`, in order. Every thread works at most `ahead` items ahead."""
    left = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[R]] = deque(pool.submit(work, item) for item in islice(left, threads * ahead))
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(work, item) for item in islice(left, 1))
                yield result
        finally:
            for future in waiting:
                future.cancel()
