"""The files of a user's data set: list them, detect changes, name the broken ones."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from istbench.base.errors import UserError, printable


def files_digest(root: Path, paths: Sequence[Path], marks: np.ndarray, what: str) -> str:
    """A hash of the files' names under `root`, sizes, times and integer `marks`, to detect changes.

    `what` names the expected kind of file in errors.

    Raises:
        UserError: naming the first path that is not a regular file.
        OSError: if a file is missing.
    """
    digest = hashlib.sha256()
    for path, mark in zip(paths, marks, strict=True):
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
