"""Files that survive a crash, and that no link leads elsewhere."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from istbench.base.errors import UserError

# These answer no for a path that cannot be seen, for instance without permission.
is_directory, is_file, is_there = os.path.isdir, os.path.isfile, os.path.exists
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def kind_at(path: Path) -> Literal["", "file", "directory", "other"]:
    """The kind of entry at `path`, after links; "" for none. `Path.exists` and its kin hide errors from 3.14 on.

    Raises:
        OSError: the path cannot be seen, for instance without permission.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in _NOTHING:
            return ""
        raise
    return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def is_full(error: OSError) -> bool:
    """Whether a write failed with `error` because the disk, or the user's part of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def sync(path: Path) -> None:
    """Flush the content of file `path`, or the names in directory `path`, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_no_link(path: Path, way_out: str) -> Path:
    """`path`, a place of istbench inside a folder that the user named.

    Raises:
        UserError: it is a symbolic link, which may lead out of that folder; the message ends in `way_out`.
    """
    with suppress(OSError):  # where nobody can look, nobody can write
        if path.is_symlink():
            raise UserError(f"{path} is a symbolic link, and istbench writes through none; delete it, or {way_out}")
    return path


def append_line(path: Path, line: bytes) -> None:
    """Append `line` and a newline to the lines in `path`, and return when they are on disk.

    A last line torn by a crash is cut off first.

    Raises:
        OSError: if the whole line cannot be written, or if `path` is a link or no regular file; earlier lines stay.
    """
    line += b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
        if status.st_nlink > 1:
            raise OSError(errno.EMLINK, "it is a hard link to a file with another name")
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
def write_errors(path: Path, way_out: str = "choose another --out") -> Iterator[None]:
    """Raise an OSError inside as a UserError, which says that `path` cannot be written, and `way_out`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; {way_out}") from None


@contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """A new file that replaces `path`, flushed to disk, if no error occurs inside. Else `path` stays unchanged.

    A link at `path` is replaced; the file that it names stays unchanged.

    Raises:
        OSError: if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, new = _new_file(path)
    try:
        with new as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def fresh_file(path: Path) -> BinaryIO:
    """A new, empty file that replaces `path` at once, for lines that readers see while they come.

    Raises:
        OSError: if it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, file = _new_file(path)
    temporary.replace(path)
    return file


def _new_file(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside `path`, whose name nobody knows before."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return temporary, os.fdopen(os.open(temporary, flags, 0o666), "wb")
