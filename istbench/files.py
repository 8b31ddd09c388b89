"""Files that survive a crash."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def sync(path: Path) -> None:
    """Return once the content of file `path`, or the names in directory `path`, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` where all went well, on disk; else what was there stays.

    Raises:
        OSError: where it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
