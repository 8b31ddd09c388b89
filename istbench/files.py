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


def append_line(path: Path, line: bytes) -> None:
    """Append `line` and a newline to the lines in `path`, and return when they are on disk.

    A last line torn by a crash is cut off first.

    Raises:
        OSError: if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


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
