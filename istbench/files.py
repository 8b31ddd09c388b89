"""Files that survive a crash."""

import errno
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


def is_directory(path: Path) -> bool:
    """Whether `path` is a directory; False if it cannot be seen, for instance without permission."""
    try:
        return path.is_dir()
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Whether `path` is a file; False if it cannot be seen."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_there(path: Path) -> bool:
    """Whether something is at `path`; False if it cannot be seen."""
    try:
        return path.exists()
    except OSError:
        return False


def append_line(path: Path, line: bytes) -> None:
    """Append `line` and a newline to the lines in `path`, and return when they are on disk.

    A last line torn by a crash is cut off first.

    Raises:
        OSError: if the whole line cannot be written; earlier lines stay.
    """
    line += b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = _cut_torn_line(descriptor)
        if os.write(descriptor, line) != len(line):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if size == 0:
        sync(path.parent)


def _cut_torn_line(descriptor: int) -> int:
    """Cut off everything after the last newline. Returns the new size of the file."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    whole = os.pread(descriptor, size, 0).rfind(b"\n") + 1
    os.ftruncate(descriptor, whole)
    return whole


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
