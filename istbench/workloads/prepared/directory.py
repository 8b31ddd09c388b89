"""A prepared directory: arrays and a summary, made once, complete or not at all.

A process fills it under another name and renames it at the end. So a directory with the final name is complete,
whenever a process was killed. Its summary, `prepared.json`, has the size of every array.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from istbench.base.decode import decode_json, read_bytes
from istbench.base.errors import UserError, printable
from istbench.base.files import sync
from istbench.base.options.data_source import DataSource
from istbench.base.options.numbers import Count, Natural
from istbench.workloads.base import Progress

SPLITS = ("train", "test")
_SUMMARY = "prepared.json"


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of prepared.json for any workload; each workload adds fields.

    Attributes:
        fingerprint: a hash of all training and test data.
        train, test: samples of each split.
        bytes: sizes of the files.
    """

    fingerprint: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    train: Count
    test: Count
    bytes: dict[str, Natural]


S = TypeVar("S", bound=Summary)


def directory_name(kind: str, version: int, key: Mapping[str, Any]) -> str:
    """The name of the prepared directory of `kind` and `key`. `key` is JSON-ready and determines the content."""
    content = json.dumps([kind, version, key], sort_keys=True)
    return f"{kind}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def prepared(
    final: Path, make: Callable[[Path], S], check: Callable[[Path], S], progress: Progress
) -> tuple[Path, S]:
    """Make the prepared directory `final` unless it is complete; return its resolved path and its summary.

    If two processes need the same directory, one fills it and the other waits.

    Args:
        make: fills an empty directory with arrays; returns its summary.
        check: returns the summary of a filled directory; raises UserError or OSError if it is incomplete.

    Raises:
        UserError: if the parent directory is not writable or the disk is full.
    """
    summary = _whole(final, check)
    if summary is None:
        with _disk_errors(final.parent), locked(final.with_name(f".{final.name}.lock"), progress):
            summary = _whole(final, check) or _make(final, make)
    return final.resolve(), summary


def open_summary(directory: Path, kind: type[S]) -> S:
    """The summary of a prepared directory.

    Raises:
        UserError: if it is missing or damaged.
    """
    try:
        return read_summary(directory, kind)
    except UserError as error:
        raise damaged(directory, str(error)) from None


def read_summary(directory: Path, kind: type[S]) -> S:
    """The summary of a prepared directory, for `check` of `prepared`, which makes the directory again on errors.

    Raises:
        UserError: if it is missing or damaged.
    """
    content = read_bytes(directory / _SUMMARY, "a summary")
    return decode_json(content, kind, str(directory / _SUMMARY), "it is made again")


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


def sizes(directory: Path) -> dict[str, int]:
    """The size of every array in `directory`."""
    return {path.name: path.stat().st_size for path in sorted(directory.glob("*.npy"))}


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
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file `path`. One process at a time can hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Also for reading: on a FIFO, an open only for writing would hang.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process to prepare the data", 0, 1)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _whole(directory: Path, check: Callable[[Path], S]) -> S | None:
    """The summary of a complete directory; None if a file is missing or has another size."""
    try:
        summary = check(directory)
        return summary if summary.bytes == sizes(directory) else None
    except (UserError, OSError):
        return None


def _make(final: Path, make: Callable[[Path], S]) -> S:
    partial = final.with_name(f".{final.name}.partial")
    for left_over in (partial, final):
        _remove(left_over)
    partial.mkdir()
    try:
        summary = make(partial)
        (partial / _SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1))
        sync(partial / _SUMMARY)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return summary


def _remove(path: Path) -> None:
    """Delete the file or directory `path`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
