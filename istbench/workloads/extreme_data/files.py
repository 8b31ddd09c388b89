"""Find the files of a data set of extreme classification, and split its points into training and test."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from istbench.base.errors import UserError, printable
from istbench.base.files import kind_at
from istbench.workloads.extreme_data.points import Points
from istbench.workloads.extreme_data.read import RepositoryHeader, read_header, read_points
from istbench.workloads.prepared import SPLITS, files_digest, listed, named_errors, visible

_ENDINGS = (".txt", ".dat", ".svm", ".libsvm", "")
_NAMES = {
    "train": re.compile(r"(^|[^a-z])(train|training|trn)($|[^a-z])"),
    "test": re.compile(r"(^|[^a-z])(test|testing|tst)($|[^a-z])"),
    "data": re.compile(r"(^|[^a-z])data($|[^a-z])"),
    "train split": re.compile(r"(^|[^a-z])(train|trn|tr)[-_. ]?split($|[^a-z])"),
    "test split": re.compile(r"(^|[^a-z])(test|tst)[-_. ]?split($|[^a-z])"),
}
_HELD_OUT = 5  # a single file without a split: every n-th point is a test point
_EXPECTED = (
    "expected files named ...train.txt and ...test.txt, or one ...data.txt with or without ..._trSplit.txt and "
    "..._tstSplit.txt beside it"
)


@dataclass(frozen=True)
class RepositoryFiles:
    """The files of one data set by kind: train and test, or data with or without both splits."""

    root: Path
    files: dict[str, Path]

    @cached_property
    def header(self) -> RepositoryHeader:
        """Numbers of features and labels, and the total number of points of all files.

        Raises:
            UserError: naming a file without a header, or one with other numbers of features or labels.
        """
        paths = [path for kind, path in self.files.items() if "split" not in kind]
        headers = [read_header(path) for path in paths]
        for path, own in zip(paths, headers, strict=True):
            for what in ("features", "labels"):
                here, there = getattr(own, what), getattr(headers[0], what)
                if here != there:
                    raise UserError(
                        f"{printable(str(path))}, line 1: {here:,} {what}, but {paths[0].name} has {there:,}: "
                        "they belong to different data sets"
                    )
        return replace(headers[0], points=sum(own.points for own in headers))

    def cache_key(self) -> dict[str, Any]:
        """A JSON-ready key that changes with any file; raises as `files_digest`."""
        digest = files_digest(self.root, list(self.files.values()), "repository text")
        return {"files": digest, "as": list(self.files)}

    @property
    def note(self) -> str:
        """A line on the split, if the data set has no split of its own."""
        if "data" in self.files and len(self.files) == 1:
            return f"{self.files['data'].name} has no split: every {_HELD_OUT}th point is a test point"
        return ""

    def points(self) -> Iterator[tuple[str, Points]]:
        """Yield all training and test points in chunks, each with its split.

        Raises:
            UserError: naming the wrong file and line.
        """
        if "data" not in self.files:
            for split in SPLITS:
                for points in read_points(self.files[split]):
                    yield split, points
            return
        is_test = self._is_test()
        first = 0
        for points in read_points(self.files["data"]):
            own = is_test[first : first + len(points)]
            first += len(points)
            for code, split in enumerate(SPLITS):
                yield split, points.take(np.flatnonzero(own == code))

    def _is_test(self) -> np.ndarray:
        """The split of every point of the one file: 0 for training, 1 for test, -1 for neither; int8."""
        count = self.header.points
        if "train split" not in self.files:
            return (np.arange(count) % _HELD_OUT == _HELD_OUT - 1).astype(np.int8)
        codes = np.full(count, -1, np.int8)
        for code, kind in enumerate(("train split", "test split")):
            path = self.files[kind]
            chosen = _read_split(path, count)
            if (codes[chosen] >= 0).any():
                raise UserError(f"{printable(str(path))}: shares points with {self.files['train split'].name}")
            codes[chosen] = code
        return codes


def _read_split(path: Path, count: int) -> np.ndarray:
    """The point numbers in the first column of a split file, counted from 0."""
    with named_errors(str(path)), path.open("rb") as file:
        lines = file.read().removeprefix(BOM_UTF8).splitlines()
    words = [line.split()[:1] for line in lines]
    for number, word in enumerate(words, start=1):
        if word and not (word[0].isdigit() and len(word[0]) < 12 and 1 <= int(word[0]) <= count):
            raise UserError(f"{printable(str(path))}, line {number}: expected a whole number from 1 to {count:,}")
    chosen = np.array([int(word[0]) for word in words if word], np.int64) - 1
    if not len(chosen):
        raise UserError(f"{printable(str(path))}, line 1: the file is empty; expected one point number per line")
    if len(np.unique(chosen)) < len(chosen):
        raise UserError(f"{printable(str(path))}: lists a point twice; list each point once")
    return chosen


def find_files(data: Path) -> RepositoryFiles:
    """The data set in directory `data`, or in its only folder with a data set; or the single file `data`.

    Raises:
        UserError: if there is none, several, or only a part of one.
    """
    with named_errors(str(data)):
        kind = kind_at(data)
        if kind == "file":
            return _files_in(data.parent, {"data": data})
        if kind != "directory":
            raise UserError(f"{printable(str(data))}: no such directory; {_EXPECTED}")
        own = _found(data)
        if own:
            return _files_in(data, own)
        inside = [folder for folder in sorted(visible(data)) if kind_at(folder) == "directory" and _found(folder)]
    if len(inside) > 1:
        names = listed([folder.name for folder in inside])
        raise UserError(f"{printable(str(data))}: it has several data sets ({names}); give the folder of one")
    if not inside:
        raise UserError(f"{printable(str(data))}: it has no repository text; {_EXPECTED}")
    return find_files(inside[0])


def _files_in(folder: Path, files: dict[str, Path]) -> RepositoryFiles:
    """`files` of `folder` in its resolved path, under their own names: a link's target may have another name."""
    root = folder.resolve()
    return RepositoryFiles(root, {kind: root / path.name for kind, path in files.items()})


def _found(folder: Path) -> dict[str, Path]:
    """The files of a data set in `folder` by kind; empty if there are none."""
    named: dict[str, list[Path]] = {kind: [] for kind in _NAMES}
    for path in sorted(visible(folder)):
        own = path.suffix.lower() in _ENDINGS and kind_at(path) == "file"
        kind = _kind(path.stem.lower()) if own else None
        if kind is not None:
            named[kind].append(path)
    for kind, paths in named.items():
        if len(paths) > 1:
            names = listed([path.name for path in paths])
            raise UserError(f"{printable(str(folder))}: {names} could each be the {kind} file; keep one of them")
    found = {kind: paths[0] for kind, paths in named.items() if paths}
    for pair in (("train", "test"), ("train split", "test split")):
        for one, other in (pair, pair[::-1]):
            if one in found and other not in found:
                raise UserError(f"{printable(str(found[one]))}: no {other} file beside it; {_EXPECTED}")
    if "train" in found and "data" in found:
        names = listed([found["data"].name, found["train"].name])
        raise UserError(f"{printable(str(folder))}: {names} both hold points; keep one of them")
    if "train split" in found and "data" not in found and "train" not in found:
        raise UserError(f"{printable(str(found['train split']))}: no data file beside it; {_EXPECTED}")
    return {kind: path for kind, path in found.items() if "split" not in kind or "data" in found}


def _kind(stem: str) -> str | None:
    """The kind of a file with this name. The name of a split may contain train and data too."""
    for kind in ("train split", "test split", "train", "test", "data"):
        if _NAMES[kind].search(stem):
            return kind
    return None
