"""The files of a data set as users give them: which they are, and how to name what is wrong with one."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from istbench.errors import UserError, printable


def files_digest(root: Path, paths: Sequence[Path], marks: np.ndarray, what: str) -> str:
    """A hash of names under `root`, sizes, times and whole-number `marks` of files: it tells whether they changed.

    `what` says what they are read as, in errors.

    Raises:
        UserError: naming the first that is no regular file.
        OSError: where one is gone.
    """
    digest = hashlib.sha256()
    for path, mark in zip(paths, marks, strict=True):
        found = path.stat()
        require_regular(path, found, what)
        said = f"{path.relative_to(root)} {found.st_size} {found.st_mtime_ns} {int(mark)}\n"
        digest.update(os.fsencode(said))
    return digest.hexdigest()


def require_regular(path: Path, found: os.stat_result, what: str) -> None:
    """Refuse a `path` that is no regular file, by what `stat` found; `what` says what it is read as.

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
    """Name the file that the system refuses, or `what` where it names none.

    Raises:
        UserError: for an OSError inside.
    """
    try:
        yield
    except OSError as error:
        name = what if error.filename is None else os.fsdecode(error.filename)
        raise UserError(f"{printable(name)}: {error.strerror or error}; make it readable or remove it") from None


def visible(folder: Path) -> Iterator[Path]:
    """What lies in `folder` but for hidden names.

    Raises:
        OSError: when it cannot be read.
    """
    return (path for path in folder.iterdir() if not path.name.startswith("."))


def utf8_name(name: str, folder: Path, what: str) -> str:
    """`name`, which lies in `folder`, as text that can be written down; `what` says what it is, in errors.

    Raises:
        UserError: where it is not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        where = printable(str(folder / name))
        raise UserError(f"{where}: the name of {what} must be text in UTF-8; rename it") from None
    return name


def listed(folders: Sequence[Path | str], most: int = 4) -> str:
    """The first of `folders`, and how many more."""
    more = f" and {len(folders) - most} more" if len(folders) > most else ""
    return printable(", ".join(map(str, folders[:most]))) + more
