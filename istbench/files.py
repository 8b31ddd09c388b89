"""Files that survive a crash."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def sync(path: Path) -> None:
    """Flush the content of file `path`, or the names in directory `path`, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """A new file that replaces `path`, flushed to disk, if no error occurs inside. Else `path` stays unchanged.

    Raises:
        OSError: if the file cannot be written.
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
