"""Finds and reads a text: a file, the text files of a directory, or Python's own help."""

import hashlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from istbench.base.decode import read_bytes
from istbench.base.errors import UserError, printable
from istbench.workloads.prepared import files_digest, named_errors, visible

LARGEST_FILE = 2**32
_TINY_SHAKESPEARE = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_HELP = "pydoc_data.topics"
_WHAT = "a text file, or a directory of *.txt files"


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """A text before it is read: its files in their order; none for Python's own help topics.

    place: the file or directory, for readers.
    """

    place: str
    files: tuple[Path, ...]

    def cache_key(self) -> dict[str, Any]:
        """A JSON-ready key that changes with any file.

        Raises:
            UserError: for a file that is missing or not regular.
        """
        if not self.files:
            return {"help": hashlib.sha256(_help().encode()).hexdigest()}
        with named_errors(self.place):
            root = self.files[0].parent
            digest = files_digest(root, self.files, np.zeros(len(self.files), np.int64), "a text")
        return {"root": str(root.resolve()), "files": digest}

    def read(self, *, decoded: bool) -> "WholeText":
        """Read all files, joined. A newline separates files that do not end in one.

        decoded: whether every file must be UTF-8; a byte-order mark at the start of a file is dropped then.

        Raises:
            UserError: naming a file that is empty, too large, unreadable, or not UTF-8.
        """
        if not self.files:
            return WholeText(content=_help().encode(), kind="python_help", name=_HELP_NAME)
        parts: list[bytes] = []
        for path in self.files:
            part = read_bytes(path, _WHAT, LARGEST_FILE)
            if not part:
                raise UserError(f"{printable(str(path))} is empty; give {_WHAT}, or remove it")
            if decoded:
                part = _checked(path, part)
            if parts and not parts[-1].endswith(b"\n"):
                parts.append(b"\n")
            parts.append(part)
        content = b"".join(parts)
        if hashlib.sha256(content).hexdigest() == _TINY_SHAKESPEARE:
            return WholeText(content=content, kind="tiny_shakespeare", name="Tiny Shakespeare")
        return WholeText(content=content, kind="text", name=printable(Path(self.place).name or self.place))


@dataclass(frozen=True, kw_only=True)
class WholeText:
    """A text in memory: its bytes, its kind as in `DataSource`, and its name."""

    content: bytes
    kind: str
    name: str

    def codes(self, *, decoded: bool) -> np.ndarray:
        """The text as numbers: the code points of its characters if `decoded`, else its bytes."""
        if not decoded:
            return np.frombuffer(self.content, np.uint8)
        return np.frombuffer(self.content.decode().encode("utf-32-le"), np.uint32)


def find_text(data: Path | None) -> TextFiles:
    """The text at `data`: the file, or all *.txt of the directory in the order of their names; without, the help.

    Raises:
        UserError: for a path that does not exist, a directory without *.txt, or a Python without its help topics.
    """
    if data is None:
        if importlib.util.find_spec(_HELP.partition(".")[0]) is None:
            raise UserError(f"this Python has no help topics to train on ({_HELP}); give --data FILE.txt")
        return TextFiles(place=_HELP_NAME, files=())
    with named_errors(str(data)):
        if not data.exists():
            raise UserError(f"no file {printable(str(data))}; give {_WHAT}")
        if not data.is_dir():
            return TextFiles(place=str(data), files=(data,))
        files = sorted(path for path in visible(data) if path.suffix == ".txt")
    if not files:
        raise UserError(f"{printable(str(data))} has no *.txt file; give {_WHAT}")
    return TextFiles(place=str(data), files=tuple(files))


_HELP_NAME = f"the help topics of Python {sys.version_info.major}.{sys.version_info.minor}"


def _help() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics.values())


def _checked(path: Path, part: bytes) -> bytes:
    try:
        return part.decode("utf-8-sig").encode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{printable(str(path))} is not UTF-8 text (byte {error.start:,}); convert it, or use its bytes: "
            "--workload-set symbols=bytes"
        ) from None
