"""Read repository text in chunks: a header `points features labels`, then one line per point."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from istbench.base.errors import UserError, printable, shown
from istbench.workloads.extreme_data.points import Points, Rows
from istbench.workloads.prepared import named_errors, require_regular

CHUNK = 1 << 24
MOST = 1 << 24
"""Maximum number of features, and of labels."""

_MOST_POINTS = 2**31 - 2
_LONGEST_HEADER = _LONGEST_WORD = 200
_LONGEST_INDEX = 18  # digits; also those of a number above every index
_EXPECTED = "expected a header `points features labels`, then one line `l1,l2 f:v f:v` per point, indices from 0"
_BLANKS = b" \t\r"
# A text matches in one way only: with more, a faulty line of many features would take exponential time.
_NUMBER = rb"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_WORD_ENDS = rb"(?![^ \t\r])"
_POINT = re.compile(
    rb"([0-9]+(?:,[0-9]+)*" + _WORD_ENDS + rb")?"
    rb"((?:[ \t]*[0-9]+:" + _NUMBER + _WORD_ENDS + rb")*)[ \t]*\r?"
)  # fmt: skip


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

    A blank line is a point without labels and features; after the last point, blank lines are ignored.

    Raises:
        UserError: naming the file and the line, if a line has the wrong form, an index is too large or twice in a
            point, a value is not a finite number, or the number of points differs from the header.
    """
    with _opened(path) as file:
        header, line = _header(path, file), 2
        while text := file.read(chunk):
            text += b"" if text.endswith(b"\n") else file.readline()
            lines = text.removesuffix(b"\n").split(b"\n")
            own = lines[: max(0, header.points + 2 - line)]
            if own:
                yield _points(path, header, own, line)
            for number, more in enumerate(lines[len(own) :], start=line + len(own)):
                if more.strip(_BLANKS):
                    raise _error(path, number, f"one more line than the {header.points:,} points of the header")
            line += len(lines)
        if line - 2 < header.points:
            end = f"the file ends after {line - 2:,} points, its header says {header.points:,}"
            raise _error(path, line, f"{end}: is it truncated?")


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
        raise _error(path, 1, f"{_shown(line.strip())} is not a header of three numbers; {_EXPECTED}")
    points, features, labels = map(int, words)
    for count, most, what in (
        (points, _MOST_POINTS, "points"),
        (features, MOST, "features"),
        (labels, MOST, "labels"),
    ):
        if not 1 <= count <= most:
            raise _error(path, 1, f"{shown(count)} {what}; expected 1 to {most:,}")
    return RepositoryHeader(points=points, features=features, labels=labels)


def _points(path: Path, header: RepositoryHeader, lines: Sequence[bytes], first: int) -> Points:
    """The points of `lines`, the first of which is line `first` of the file."""
    found = [_POINT.fullmatch(line) for line in lines]
    labels, features = ([one[part] or b"" for one in found if one] for part in (1, 2))
    pairs = _numbers(features, b":").reshape(-1, 2)
    with np.errstate(over="ignore"):
        values = pairs[:, 1].astype(np.float32)
    feature_rows = _rows([text.count(b":") for text in features], pairs[:, 0], header.features)
    label_rows = _rows([text.count(b",") + (text != b"") for text in labels], _numbers(labels, b","), header.labels)
    if None in found or feature_rows is None or label_rows is None or not np.isfinite(values).all():
        for number, line in enumerate(lines, start=first):
            _check_point(path, header, line, number)
    assert feature_rows is not None
    assert label_rows is not None
    return Points(Rows(feature_rows.ends, feature_rows.indices, values), label_rows)


def _numbers(texts: Sequence[bytes], separator: bytes) -> np.ndarray:
    """The numbers in `texts`, which blanks and `separator` part, as the nearest doubles."""
    joined = b" ".join(texts).replace(separator, b" ").strip()
    return np.fromstring(joined, np.float64, sep=" ") if joined else np.zeros(0)


def _rows(counts: Sequence[int], indices: np.ndarray, columns: int) -> Rows | None:
    """Rows of so many `indices` each; None if one is not below `columns`, or stands twice in a row."""
    if not (indices < columns).all():
        return None
    own = indices.astype(np.int64)
    places = np.sort(np.repeat(np.arange(len(counts)), counts) * columns + own)
    return Rows(np.cumsum(counts), own.astype(np.int32)) if np.diff(places).all() else None


def _check_point(path: Path, header: RepositoryHeader, line: bytes, number: int) -> None:
    """Refuse the first wrong word of `line`."""
    words = re.split(rb"[ \t]+", line.removesuffix(b"\r"))
    labels = [] if not words[0] or b":" in words[0] else words.pop(0).split(b",")
    seen: set[int] = set()
    for word in labels:
        index = _index(word, header.labels)
        if index is None:
            said = f"label {_shown(word)} is not a whole number from 0 to {header.labels - 1:,}"
            raise _error(path, number, said)
        if index in seen:
            raise _error(path, number, f"label {_shown(word)} occurs twice in one point")
        seen.add(index)
    seen = set()
    for word in filter(None, words):
        place, colon, value = word.partition(b":")
        index = _index(place, header.features)
        if not colon or index is None:
            said = f"{_shown(word)} is not INDEX:VALUE with an index from 0 to {header.features - 1:,}"
            raise _error(path, number, said)
        if index in seen:
            raise _error(path, number, f"the feature of {_shown(word)} occurs twice in one point")
        seen.add(index)
        with np.errstate(over="ignore"):
            if not re.fullmatch(_NUMBER, value) or not np.isfinite(np.float32(float(value))):
                raise _error(path, number, f"the value of {_shown(word)} is not a finite number")


def _index(word: bytes, below: int) -> int | None:
    """The index that is `word`; None if it is none, or not `below`."""
    digits = word.lstrip(b"0") or b"0"
    index = int(digits) if word.isdigit() and len(digits) <= _LONGEST_INDEX else below
    return index if index < below else None


def _shown(word: bytes) -> str:
    return shown(word[:_LONGEST_WORD].decode("utf-8", "backslashreplace"))


def _error(path: Path, line: int, said: str) -> UserError:
    return UserError(f"{printable(str(path))}, line {line}: {said}")
