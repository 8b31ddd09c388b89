"""Texts: finding and reading them, and their prepared symbols on disk, which every process maps.

A prepared directory holds `train_symbols.npy` and `test_symbols.npy` (uint16 [symbols]), and `prepared.json`.
"""

import hashlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from istbench.base.decode import read_bytes
from istbench.base.errors import UserError, printable
from istbench.base.files import kind_at, sync
from istbench.base.options.data_source import DataSource
from istbench.base.options.numbers import Count, Natural
from istbench.workloads import prepared as shared
from istbench.workloads.base import ShowProgress
from istbench.workloads.prepared import SPLITS, damaged, files_digest, map_array, named_errors, visible

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
        """A JSON-ready key that changes with any file; raises as `files_digest`."""
        if not self.files:
            return {"help": hashlib.sha256(_help().encode()).hexdigest()}
        root = self.files[0].parent
        return {"root": str(root.resolve()), "files": files_digest(root, self.files, "a text")}

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
        kind = kind_at(data)
        if not kind:
            raise UserError(f"no file {printable(str(data))}; give {_WHAT}")
        if kind != "directory":
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


Symbols = Literal["characters", "bytes"]

VERSION = 1
_BYTES = 256
_MOST_SYMBOLS = 2**16


class TextSummary(shared.Summary, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of prepared.json. `train` and `test` count symbols.

    Attributes:
        symbols: number of different symbols, with one for unknown characters if there are any.
        unknown: characters of the test text that are not in the training text.
        vocabulary: the characters by their number; empty for bytes.
        kind, name: as in `DataSource`.
    """

    symbols: Count
    unknown: Natural
    vocabulary: str
    kind: str
    name: str


def numbered(
    codes: np.ndarray, symbols: Symbols, place: str, test_percent: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`codes` as numbers of symbols (uint16), the last `test_percent` of them for testing; and the known codes.

    Returns the training part, the test part, and the code of each number. The characters of the training text have
    numbers in the order of their code points. All other characters of the test text are one symbol more, the last.

    Raises:
        UserError: naming `place`, for a text with too many characters, or too short for two splits.
    """
    cut = len(codes) * (100 - test_percent) // 100
    if cut < 2 or len(codes) - cut < 2:
        raise UserError(
            f"{place} has {len(codes)} {symbols}, too few for a training part of "
            f"{100 - test_percent} % and a test part; give more text"
        )
    if symbols == "bytes":
        return codes[:cut].astype(np.uint16), codes[cut:].astype(np.uint16), np.arange(_BYTES)
    known = np.unique(codes[:cut])
    if len(known) >= _MOST_SYMBOLS:
        raise UserError(
            f"{place} has {len(known):,} different characters, more than {_MOST_SYMBOLS - 1:,}; use "
            "--workload-set symbols=bytes"
        )
    numbers = np.full(int(codes.max()) + 1, len(known), np.uint16)
    numbers[known] = np.arange(len(known), dtype=np.uint16)
    return numbers[codes[:cut]], numbers[codes[cut:]], known


# The last text of `count_symbols`, until it is prepared.
_unprepared: dict[str, tuple[np.ndarray, np.ndarray, TextSummary]] = {}
_counts: dict[str, int] = {}


def count_symbols(text: TextFiles, symbols: Symbols, test_percent: int) -> int:
    """The number of different symbols of `text`. A process reads it once for this and for `prepare_text`.

    Raises:
        UserError: as `TextFiles.read` and `numbered`.
    """
    key = str(_key(text, symbols, test_percent))
    if key not in _counts:
        _unprepared.clear()
        _unprepared[key] = _read(text, symbols, test_percent)
        _counts[key] = _unprepared[key][-1].symbols
    return _counts[key]


def prepare_text(
    text: TextFiles, symbols: Symbols, test_percent: int, cache: Path, progress: ShowProgress
) -> tuple[Path, TextSummary]:
    """The prepared directory of `text` under `cache`, and its summary.

    Raises:
        UserError: as `TextFiles.read` and `numbered`; and if `cache` is not writable or the disk is full.
    """
    key = _key(text, symbols, test_percent)

    def make(directory: Path) -> TextSummary:
        progress("text read", 0, 1)
        *arrays, summary = _unprepared.get(str(key)) or _read(text, symbols, test_percent)
        for split, array in zip(SPLITS, arrays, strict=True):
            np.save(directory / f"{split}_symbols.npy", array)
            sync(directory / f"{split}_symbols.npy")
        progress("text read", 1, 1)
        return summary

    made = shared.prepared(cache, "text", VERSION, key, TextSummary, make, open_split, progress)
    _unprepared.clear()
    return made


def _key(text: TextFiles, symbols: Symbols, test_percent: int) -> dict[str, Any]:
    return {"symbols": symbols, "test_percent": test_percent, "place": text.place, **text.cache_key()}


def _read(text: TextFiles, symbols: Symbols, test_percent: int) -> tuple[np.ndarray, np.ndarray, TextSummary]:
    """The symbols of `text` for training and for testing, and their summary."""
    decoded = symbols == "characters"
    whole = text.read(decoded=decoded)
    train, test, known = numbered(whole.codes(decoded=decoded), symbols, text.place, test_percent)
    unknown = int((test == len(known)).sum())
    summary = TextSummary(
        fingerprint=hashlib.sha256(symbols.encode() + b"\n" + whole.content).hexdigest(),
        train=len(train),
        test=len(test),
        symbols=len(known) + (unknown > 0),
        unknown=unknown,
        vocabulary="".join(map(chr, known.tolist())) if decoded else "",
        kind=whole.kind,
        name=whole.name,
    )
    return train, test, summary


def open_split(directory: Path, summary: TextSummary, split: str) -> np.ndarray:
    """Map the symbols of `split`, uint16 [symbols]; raises as `map_array`."""
    name = f"{split}_symbols.npy"
    array = map_array(directory, name, np.uint16, 1)
    if len(array) and int(array.max()) >= summary.symbols:
        raise damaged(directory, f"{name} has symbols outside its {summary.symbols}")
    return array


def source_of(directory: Path, summary: TextSummary, *, unit: Symbols, train: int, test: int) -> DataSource:
    """The `DataSource` of a prepared text with `train` and `test` windows."""
    notes = []
    if summary.kind == "python_help":
        notes.append(
            f"no --data: trains on {summary.name}, real text that every Python has (--data FILE.txt: any text)"
        )
    if summary.unknown:
        notes.append(
            f"{summary.unknown:,} characters of the test text are not in the training text: one unknown symbol "
            "stands for them"
        )
    name, note = f"{summary.name}, {summary.train + summary.test:,} {unit}", "; ".join(notes)
    source = shared.source_of(directory, summary, kind=summary.kind, name=name, unit="windows", note=note)
    return msgspec.structs.replace(source, train=train, test=test)
