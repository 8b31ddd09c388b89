"""Prepare a directory of points, from repository text or synthetic, and open it.

A prepared directory holds CSR arrays, which every process maps: of both splits, `SPLIT_feature_ends.npy` and
`SPLIT_label_ends.npy` (int64 [points]), `SPLIT_features.npy` and `SPLIT_labels.npy` (int32), `SPLIT_values.npy`
(float32), and `prepared.json`.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from istbench.base.errors import UserError, printable
from istbench.base.options.data_source import DataSource
from istbench.base.options.numbers import Units
from istbench.workloads import prepared as shared
from istbench.workloads.base import ShowProgress
from istbench.workloads.extreme_data.files import RepositoryFiles, find_files
from istbench.workloads.extreme_data.points import Points, Rows
from istbench.workloads.extreme_data.synthetic import MadeUp
from istbench.workloads.prepared import SPLITS, ArrayWriter, damaged, map_array, source_of

AMAZON_670K = (135_909, 670_091)
"""Features and labels of Amazon-670K."""

AMAZON_670K_POINTS = 490_449 + 153_025

SYNTHETIC_NOTE = (
    "synthetic points: random features and labels with a long tail, not Amazon's products "
    "(for these, or any data set of the XC repository: --data DIR)"
)
VERSION = 1
KINDS = {
    "feature_ends": np.int64,
    "features": np.int32,
    "values": np.float32,
    "label_ends": np.int64,
    "labels": np.int32,
}

Propensity = Literal["amazon", "wikipedia", "other"]


class PointsSummary(shared.Summary, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of prepared.json.

    Attributes:
        features, labels: numbers of features and labels.
        propensity: the kind of data set, which determines the propensities of labels.
    """

    features: Units
    labels: Units
    propensity: Propensity


def _write(directory: Path, points: Iterable[tuple[str, Points]]) -> Iterator[int]:
    """Write `points`, in chunks with their splits; yields the number so far."""
    done = 0
    with ExitStack() as stack:
        files = {
            (split, name): stack.enter_context(closing(ArrayWriter(directory / f"{split}_{name}.npy", kind)))
            for split in SPLITS
            for name, kind in KINDS.items()
        }
        for split, chunk in points:
            features, labels = chunk.features, chunk.labels
            files[split, "feature_ends"].append(features.ends + files[split, "features"].length)
            files[split, "label_ends"].append(labels.ends + files[split, "labels"].length)
            files[split, "features"].append(features.indices)
            files[split, "labels"].append(labels.indices)
            values = features.values
            files[split, "values"].append(np.ones(len(features.indices)) if values is None else values)
            done += len(chunk)
            yield done


def open_split(directory: Path, split: str) -> Points:
    """Map the split "train" or "test" of a prepared directory; raises as `map_array`."""
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


def _checked_split(directory: Path, summary: PointsSummary, split: str) -> Points:
    """`open_split`; refuses indices with which a batch would read elsewhere."""
    points = open_split(directory, split)
    for rows, columns in ((points.features, summary.features), (points.labels, summary.labels)):
        if (np.diff(rows.ends, prepend=0) < 0).any():
            raise damaged(directory, f"{split} has a point that ends before it starts")
        if len(rows.indices) and not 0 <= rows.indices.min() <= rows.indices.max() < columns:
            raise damaged(directory, f"{split} has indices outside its {columns} columns")
    return points


def _prepared(
    cache: Path,
    kind: str,
    key: Mapping[str, Any],
    points: Iterator[tuple[str, Points]],
    task: str,
    total: int,
    progress: ShowProgress,
    *,
    features: int,
    labels: int,
    propensity: Propensity,
    needed: int = 0,
) -> tuple[Path, PointsSummary]:
    """The prepared directory of (`kind`, `key`) under `cache`, made of `total` points unless it exists.

    Args:
        key: JSON-ready; everything that determines the content.
        points: in chunks, each with its split. needed: about their bytes on disk.
        task: for `progress`.
    """

    def make(directory: Path) -> PointsSummary:
        shared.require_room(directory, needed, f"{total:,} points", "use fewer points")
        for done in _write(directory, points):
            progress(task, done, total)
        counts = {split: len(open_split(directory, split)) for split in SPLITS}
        for split, count in counts.items():
            if count == 0:
                raise UserError(f"no {split} points: give more points, or files of both splits")
        names = [f"{split}_{name}.npy" for split in SPLITS for name in KINDS]
        return PointsSummary(
            fingerprint=shared.fingerprint(directory, names, f"{features} {labels} {propensity}"),
            train=counts["train"],
            test=counts["test"],
            features=features,
            labels=labels,
            propensity=propensity,
        )

    return shared.prepared(cache, kind, VERSION, key, PointsSummary, make, _checked_split, progress)


def prepare_files(data: Path, cache: Path, progress: ShowProgress) -> DataSource:
    """Prepare the data set in directory `data` under `cache`.

    Raises:
        UserError: for a directory with none or several, a broken file (naming its line), or a cache that is not
            writable.
    """
    files = find_files(data)
    header = files.header
    names = " ".join([files.root.name, *(path.name for path in files.files.values())]).lower()
    path, summary = _prepared(
        cache,
        "repository",
        {**files.cache_key(), "name": files.root.name},
        files.points(),
        "points read",
        header.points,
        progress,
        features=header.features,
        labels=header.labels,
        propensity="amazon" if "amazon" in names else "wikipedia" if "wiki" in names else "other",
    )
    _require_labels(files, path)
    official = (summary.features, summary.labels) == AMAZON_670K
    kind, name = ("amazon670k", "Amazon-670K") if official else ("xc_repository", files.root.name)
    whole = AMAZON_670K_POINTS if official else None
    return source_of(path, summary, kind=kind, name=printable(name), unit="points", note=files.note, whole=whole)


def _require_labels(files: RepositoryFiles, directory: Path) -> None:
    """Refuse points without any label: a model cannot learn from them, and every metric is 0."""
    for split in SPLITS:
        if not len(open_split(directory, split).labels.indices):
            file = files.files.get(split) or files.files["data"]
            raise UserError(
                f"{printable(str(file))}: no {split} point has a label; a line must start with its labels, "
                "as in `3,7 0:1 5:0.2`"
            )


def prepare_made_up(made_up: MadeUp, cache: Path, progress: ShowProgress) -> DataSource:
    """Prepare the points of `made_up` under `cache`.

    Raises:
        UserError: for a cache that is not writable, or a disk without room for them.
    """
    path, summary = _prepared(
        cache,
        "synthetic",
        asdict(made_up),
        made_up.chunks(),
        "synthetic points",
        made_up.points + made_up.test,
        progress,
        features=made_up.features,
        labels=made_up.labels,
        propensity="other",
        needed=made_up.bytes_on_disk,
    )
    return source_of(path, summary, kind="synthetic", name="SYNTHETIC points", unit="points", note=SYNTHETIC_NOTE)
