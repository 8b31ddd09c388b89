"""A data set fetched once into the cache: the final directory appears only when complete."""

import tarfile
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from istbench.errors import UserError
from istbench.workloads.base import Progress
from istbench.workloads.prepared.directory import locked

_COMPLETE = "original"
_PARTIAL = "original.partial"


def downloaded(folder: Path) -> Path | None:
    """The directory of the extracted archive under `folder`, or None when it was never downloaded."""
    complete = folder / _COMPLETE
    return complete if complete.is_dir() else None


def download(
    folder: Path, name: str, fetch: Callable[[Path], None], *, task: str, way_out: str, progress: Progress
) -> Path:
    """Download and extract the data set `name` under `folder` unless it is there; returns its directory.

    An interrupted one starts again from what `fetch` left.

    Args:
        fetch: downloads into a directory, which may hold what an interrupted one left, and removes the archive.
        task: said to `progress`. way_out: ends the error.

    Raises:
        UserError: when the network refuses, the archive is not the published one, or the disk is full.
    """
    complete = downloaded(folder)
    if complete is not None:
        return complete
    progress(task, 0, 1)
    try:
        with locked(folder / ".original.lock", progress):
            # Another process may have been faster.
            if downloaded(folder) is None:
                partial = folder / _PARTIAL
                partial.mkdir(exist_ok=True)
                fetch(partial)
                partial.rename(folder / _COMPLETE)
    except (OSError, EOFError, RuntimeError, HTTPException, tarfile.TarError) as error:
        raise UserError(f"{name} could not be downloaded to {folder}: {_reason(error)}; {way_out}") from None
    progress(task, 1, 1)
    return folder / _COMPLETE


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
