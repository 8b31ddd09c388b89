"""Download a data set once into the cache. The final directory exists only if it is complete."""

import tarfile
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from istbench.base.errors import UserError
from istbench.workloads.base import Progress
from istbench.workloads.prepared.directory import locked

_COMPLETE = "original"
_PARTIAL = "original.partial"


def downloaded(folder: Path) -> Path | None:
    """The directory of the extracted archive under `folder`, or None if there is none."""
    complete = folder / _COMPLETE
    return complete if complete.is_dir() else None


def download(
    folder: Path, name: str, fetch: Callable[[Path], None], *, task: str, way_out: str, progress: Progress
) -> Path:
    """Download and extract the data set `name` under `folder` unless it is there; returns its directory.

    After an interruption, `fetch` continues with its earlier files.

    Args:
        fetch: downloads into a directory, which may have files of an interrupted call, and removes the archive.
        task: text for `progress`. way_out: end of the error message.

    Raises:
        UserError: if the network fails, the archive is not the published one, or the disk is full.
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
