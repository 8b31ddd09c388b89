"""Files from outside: regular files of bounded size, with names and text in UTF-8."""

import contextlib
import difflib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from istbench.base.errors import UserError, printable, shown

LARGEST_TEXT = 16 * 2**20
# Limits of most file systems, with room for suffixes.
_LONGEST_NAME, _LONGEST_PATH = 200, 3500


def read_bytes(path: Path, what: str, most: int = LARGEST_TEXT) -> bytes:
    """Content of the regular file `path`, at most `most` bytes; errors end in the way out `give {what}`.

    Raises:
        UserError: if it is missing, too large, unreadable, or not a regular file, which might never end.
    """
    with regular_file(path, what, most) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read()


@contextlib.contextmanager
def regular_file(path: Path, what: str, most: int) -> Iterator[int]:
    """A descriptor of `path`, opened for reading, closed at the end.

    Raises:
        UserError: as `read_bytes`.
    """
    try:
        # A FIFO without a writer must not hang the open.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise UserError(f"{path} is {_kind(found.st_mode)}, not a file; give {what}")
            if found.st_size > most:
                raise UserError(f"{path} has {found.st_size:,} bytes, more than {most:,}: it is not {what}")
            yield descriptor
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise missing_file(path, what) from None
    except ValueError:  # a NUL in the name
        raise UserError(f"{shown(str(path))} is not the name of a file; give {what}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; give {what}") from None


def missing_file(path: Path, what: str) -> UserError:
    """The error for a missing `path`: the file beside it with nearly the same name, or else `give {what}`."""
    with contextlib.suppress(OSError):
        others = [other.name for other in path.parent.iterdir() if other.suffix == path.suffix]
        nearest = difflib.get_close_matches(path.name, others, n=1, cutoff=0.7)
        if nearest and nearest[0] != path.name:
            return UserError(f"no file {printable(str(path))}; did you mean {shown(nearest[0])}?")
    return UserError(f"no file {printable(str(path))}; give {what}")


def read_text(path: Path, what: str) -> str:
    """Text of the regular file `path` in UTF-8, with or without a byte-order mark.

    Raises:
        UserError: as `read_bytes`, and for text that is not UTF-8.
    """
    try:
        return read_bytes(path, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); give {what}") from None


def utf8_path(text: str, flag: str) -> Path:
    """`text` as a path.

    Raises:
        UserError: if it is empty, too long, or not UTF-8, so that no results file could record it.
    """
    problem = name_problem(text)
    if problem:
        raise UserError(f"{flag}: {shown(text)} {problem}")
    return Path(text)


def name_problem(text: str) -> str | None:
    """The reason why `text` cannot name a file in a results file; None for a good name."""
    if not text or "\0" in text:
        return "is not the name of a file or directory"
    try:
        longest = max(len(part) for part in text.encode().split(b"/"))
    except UnicodeEncodeError:
        return "is not UTF-8; rename it"
    return "is too long for a name" if longest > _LONGEST_NAME or len(text) > _LONGEST_PATH else None


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
