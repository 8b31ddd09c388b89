"""Read repository text in chunks: a header `points features labels`, then one line per point."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from istbench.base.errors import UserError, printable, shown
from istbench.workloads.extreme_data.points import Points, Rows
from istbench.workloads.extreme_data.scan import ScanFault, scan_lines
from istbench.workloads.prepared import named_errors, require_regular

CHUNK = 1 << 24
MOST = 1 << 24
"""Maximum number of features, and of labels."""

_MOST_POINTS = 2**31 - 2
_LONGEST_HEADER = _LONGEST_WORD = 200
_SHORTEST_FEATURE, _SHORTEST_LABEL = 4, 2  # bytes, with the separator
_EXPECTED = "expected a header `points features labels`, then one line `l1,l2 f:v f:v` per point, indices from 0"
_BLANKS = b" \t\r\n"


@dataclass(frozen=True, kw_only=True)
class RepositoryHeader:
    """The first line of a file."""

    points: int
    features: int
    labels: int


def read_header(path: Path) -> RepositoryHeader:
    """The header of `path`.

    Raises:
        UserError: naming the file and its first line, if that is not a header.
    """
    with _opened(path) as file:
        return _header(path, file)


def read_points(path: Path, chunk: int = CHUNK) -> Iterator[Points]:
    """Yield the points of `path` in order, in chunks of about `chunk` bytes.

    The next chunk overwrites the arrays. A blank line is a point without labels and features; after the last point,
    blank lines are ignored.

    Raises:
        UserError: naming the file and the line, if a line has the wrong form, an index is too large or twice in a
            point, a value is not a finite number, or the number of points differs from the header.
    """
    with _opened(path) as file:
        yield from _PointsReader(path, file, chunk).points()


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with named_errors(str(path)):
        require_regular(path, path.stat(), "repository text")
        with path.open("rb") as file:
            yield file


def _header(path: Path, file: BinaryIO) -> RepositoryHeader:
    line = file.readline(_LONGEST_HEADER).removeprefix(BOM_UTF8)
    words = line.split()
    if not line:
        raise _error(path, 1, f"the file is empty; {_EXPECTED}")
    if len(words) != 3 or not all(word.isdigit() for word in words) or not line.endswith(b"\n"):
        raise _error(path, 1, f"{shown(_text(line.strip()))} is not a header of three numbers; {_EXPECTED}")
    points, features, labels = map(int, words)
    for count, most, what in (
        (points, _MOST_POINTS, "points"),
        (features, MOST, "features"),
        (labels, MOST, "labels"),
    ):
        if not 1 <= count <= most:
            raise _error(path, 1, f"{shown(count)} {what}; expected 1 to {most:,}")
    return RepositoryHeader(points=points, features=features, labels=labels)


class _PointsReader:
    def __init__(self, path: Path, file: BinaryIO, chunk: int) -> None:
        self._path, self._file, self._chunk = path, file, chunk
        self._header = header = _header(path, file)
        self._seen_features = np.zeros(header.features, np.int32)
        self._seen_labels = np.zeros(header.labels, np.int32)
        self._done = 0
        self._line = 2  # line number at the start of the current chunk
        self._room = -1

    def points(self) -> Iterator[Points]:
        while (text := self._lines()) is not None:
            taken = 0
            if self._done < self._header.points:
                self._make_room(len(text))
                found, taken = self._scan(text)
                yield found
            self._refuse_more(text, taken)
            self._line += int(np.count_nonzero(text == ord("\n")))
        if self._done < self._header.points:
            end = f"the file ends after {self._done:,} points, its header says {self._header.points:,}"
            raise _error(self._path, self._line, f"{end}: is it truncated?")

    def _lines(self) -> np.ndarray | None:
        """The next whole lines, uint8, each with its newline; None at the end."""
        text = self._file.read(self._chunk)
        if not text:
            return None
        if not text.endswith(b"\n"):
            text += self._file.readline()
        return np.frombuffer(text if text.endswith(b"\n") else text + b"\n", np.uint8)

    def _make_room(self, size: int) -> None:
        """Allocate arrays for the points in `size` bytes. The kernel provides memory only for written pages."""
        if size > self._room:
            self._room = size
            features, labels = size // _SHORTEST_FEATURE + 1, size // _SHORTEST_LABEL + 1
            self._feature_ends, self._label_ends = np.empty(size, np.int64), np.empty(size, np.int64)
            self._features, self._labels = np.empty(features, np.int32), np.empty(labels, np.int32)
            self._value_places = np.empty((3, features), np.int64)

    def _scan(self, text: np.ndarray) -> tuple[Points, int]:
        """The points of `text`, and the end of the last point in it."""
        header = self._header
        fault, at, points, features, labels = scan_lines(
            text, len(text), header.points - self._done, header.features, header.labels, self._done,
            self._seen_features, self._seen_labels,
            self._feature_ends, self._features, self._value_places, self._label_ends, self._labels,
        )  # fmt: skip
        values = self._values(text, features)
        if fault:
            raise self._fault(ScanFault(fault), text, at)
        self._done += points
        found = Points(
            Rows(self._feature_ends[:points], self._features[:features], values),
            Rows(self._label_ends[:points], self._labels[:labels]),
        )
        return found, at

    def _values(self, text: np.ndarray, count: int) -> np.ndarray:
        """The first `count` values that the scan of `text` found, float32."""
        content = text.tobytes()
        words, starts, ends = self._value_places[:, :count]
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        with np.errstate(over="ignore"):
            values = np.fromiter((_number(content[start:end]) for start, end in places), np.float64, count)
            values = values.astype(np.float32)
        for wrong in np.flatnonzero(~np.isfinite(values))[:1].tolist():
            raise self._fault(ScanFault.VALUE, text, int(words[wrong]))
        return values

    def _refuse_more(self, text: np.ndarray, taken: int) -> None:
        """Refuse text after the last point, except blank lines."""
        if taken == len(text):
            return
        for place in np.flatnonzero(~np.isin(text[taken:], list(_BLANKS)))[:1].tolist():
            line = self._line + text[: taken + place].tobytes().count(b"\n")
            raise _error(self._path, line, f"one more line than the {self._header.points:,} points of the header")

    def _fault(self, fault: ScanFault, text: np.ndarray, at: int) -> UserError:
        """The error for `fault` in the word at `at` of `text`."""
        line = self._line + text[:at].tobytes().count(b"\n")
        ends = rb"[ \t\r\n,]" if fault in (ScanFault.LABEL, ScanFault.LABEL_TWICE) else rb"[ \t\r\n]"
        word = re.split(ends, text[at : at + _LONGEST_WORD].tobytes(), maxsplit=1)[0]
        return _error(self._path, line, self._said(fault, shown(_text(word))))

    def _said(self, fault: ScanFault, word: str) -> str:
        match fault:
            case ScanFault.LABEL:
                return f"label {word} is not a whole number from 0 to {self._header.labels - 1:,}"
            case ScanFault.FEATURE:
                return f"{word} is not INDEX:VALUE with an index from 0 to {self._header.features - 1:,}"
            case ScanFault.VALUE:
                return f"the value of {word} is not a finite number"
        return f"{'label' if fault == ScanFault.LABEL_TWICE else 'the feature of'} {word} occurs twice in one point"


def _number(text: bytes) -> float:
    """The number in `text`, the nearest double; NaN for other text."""
    try:
        return float(text)
    except ValueError:
        return np.nan


def _text(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")


def _error(path: Path, line: int, said: str) -> UserError:
    return UserError(f"{printable(str(path))}, line {line}: {said}")
