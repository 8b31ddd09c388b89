"""Prepared points on disk: CSR arrays, made once, that every process maps.

A prepared directory holds, of both splits, `SPLIT_feature_ends.npy` and `SPLIT_label_ends.npy` (int64 [points]),
`SPLIT_features.npy` and `SPLIT_labels.npy` (int32), `SPLIT_values.npy` (float32), and `prepared.json`.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from istbench.base.errors import UserError
from istbench.base.options.numbers import Units
from istbench.workloads import prepared as shared
from istbench.workloads.base import Progress
from istbench.workloads.extreme_data.points import Points, Rows
from istbench.workloads.prepared import SPLITS, damaged, map_array

VERSION = 1
KINDS = {
    "feature_ends": np.int64,
    "features": np.int32,
    "values": np.float32,
    "label_ends": np.int64,
    "labels": np.int32,
}
_HASHED = 1 << 22

Propensity = Literal["amazon", "wikipedia", "other"]


@dataclass(frozen=True, kw_only=True)
class DataSetFacts:
    """Numbers of features and labels of a data set, and its kind for propensities."""

    features: int
    labels: int
    propensity: Propensity


class PointsSummary(shared.Summary, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of prepared.json.

    Attributes:
        features, labels: numbers of features and labels.
        propensity: the kind of data set, which determines the propensities of labels.
    """

    features: Units
    labels: Units
    propensity: Propensity


class PointsWriter:
    """Writes the points of both splits in chunks. It uses plain writes, so a full disk raises an error."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[str, BinaryIO] = {}
        self._lengths: dict[str, int] = {}
        for split in SPLITS:
            for name, kind in KINDS.items():
                self._files[f"{split}_{name}"] = file = (directory / f"{split}_{name}.npy").open("wb")
                self._lengths[f"{split}_{name}"] = 0
                _write_header(file, kind, 0)

    def write(self, split: str, points: Points) -> None:
        """Append `points` to `split`."""
        features, labels = points.features, points.labels
        arrays = {
            "feature_ends": features.ends + self._lengths[f"{split}_features"],
            "label_ends": labels.ends + self._lengths[f"{split}_labels"],
            "features": features.indices,
            "labels": labels.indices,
            "values": np.ones(len(features.indices)) if features.values is None else features.values,
        }
        for name, array in arrays.items():
            self._files[f"{split}_{name}"].write(np.ascontiguousarray(array, KINDS[name]).data)
            self._lengths[f"{split}_{name}"] += len(array)

    def close(self) -> None:
        """Write the final headers, flush the files to disk and close them."""
        for name, file in self._files.items():
            with file:
                file.seek(0)
                _write_header(file, KINDS[name.partition("_")[2]], self._lengths[name])
                file.flush()
                os.fsync(file.fileno())


def _write_header(file: BinaryIO, kind: type, length: int) -> None:
    """Write a header of the same size for any `length`: numpy leaves room for an array to grow."""
    header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)


def open_split(directory: Path, split: str) -> Points:
    """Map the split "train" or "test" of a prepared directory.

    Raises:
        UserError: if one of its files is missing or damaged.
    """
    arrays = {name: map_array(directory, f"{split}_{name}.npy", kind, 1) for name, kind in KINDS.items()}
    for ends, *entries in (("feature_ends", "features", "values"), ("label_ends", "labels")):
        last = int(arrays[ends][-1]) if len(arrays[ends]) else 0
        for name in entries:
            if len(arrays[name]) != last:
                raise damaged(directory, f"{split}_{name}.npy has {len(arrays[name])} entries, not {last}")
    if len(arrays["feature_ends"]) != len(arrays["label_ends"]):
        raise damaged(directory, f"{split} has features and labels of different points")
    features = Rows(arrays["feature_ends"], arrays["features"], arrays["values"])
    return Points(features, Rows(arrays["label_ends"], arrays["labels"]))


def prepared(
    cache: Path,
    kind: str,
    key: Mapping[str, Any],
    facts: Callable[[], DataSetFacts],
    fill: Callable[[PointsWriter], None],
    progress: Progress,
) -> tuple[Path, PointsSummary]:
    """The prepared directory of (`kind`, `key`) under `cache`. `fill(writer)` makes it unless it exists.

    Args:
        key: JSON-ready; everything that determines the content.
        facts: returns sizes and kind for the summary.

    Raises:
        UserError: if `cache` is not writable or the disk is full; and errors of the arguments.
    """

    def make(directory: Path) -> PointsSummary:
        own = facts()
        with closing(PointsWriter(directory)) as writer:
            fill(writer)
        counts = {split: len(open_split(directory, split)) for split in SPLITS}
        for split, count in counts.items():
            if count == 0:
                raise UserError(f"no {split} points: give more points, or files of both splits")
        return PointsSummary(
            fingerprint=_fingerprint(directory, own),
            train=counts["train"],
            test=counts["test"],
            features=own.features,
            labels=own.labels,
            propensity=own.propensity,
            bytes=shared.sizes(directory),
        )

    return shared.prepared(cache, kind, VERSION, key, PointsSummary, make, _points, progress)


def _fingerprint(directory: Path, facts: DataSetFacts) -> str:
    digest = hashlib.sha256(f"{facts.features} {facts.labels} {facts.propensity}".encode())
    for split in SPLITS:
        for name, kind in KINDS.items():
            array = map_array(directory, f"{split}_{name}.npy", kind, 1)
            for first in range(0, len(array), _HASHED):
                digest.update(np.ascontiguousarray(array[first : first + _HASHED]).data)
    return digest.hexdigest()


def _points(directory: Path, summary: PointsSummary, split: str) -> int:
    """The number of points in the arrays of `split`; refuses indices with which a batch would read elsewhere."""
    points = open_split(directory, split)
    for rows, columns in ((points.features, summary.features), (points.labels, summary.labels)):
        if (np.diff(rows.ends, prepend=0) < 0).any():
            raise damaged(directory, f"{split} has a point that ends before it starts")
        if len(rows.indices) and not 0 <= rows.indices.min() <= rows.indices.max() < columns:
            raise damaged(directory, f"{split} has indices outside its {columns} columns")
    return len(points)
