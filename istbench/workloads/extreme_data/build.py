"""Prepare a directory of points, from repository text or synthetic."""

from dataclasses import asdict
from pathlib import Path

from istbench.base.errors import UserError, printable
from istbench.base.options.data_source import DataSource
from istbench.workloads.base import Progress
from istbench.workloads.extreme_data.cache import DataSetFacts, PointsWriter, Propensity, open_split, prepared
from istbench.workloads.extreme_data.files import RepositoryFiles, find_files
from istbench.workloads.extreme_data.synthetic import MadeUp
from istbench.workloads.prepared import SPLITS, require_room, source_of

AMAZON_670K = (135_909, 670_091)
"""Features and labels of Amazon-670K."""

AMAZON_670K_POINTS = 490_449 + 153_025

SYNTHETIC_NOTE = (
    "synthetic points: random features and labels with a long tail, not Amazon's products "
    "(for these, or any data set of the XC repository: --data DIR)"
)


def prepare_files(data: Path, cache: Path, progress: Progress) -> DataSource:
    """Prepare the data set in directory `data` under `cache`.

    Raises:
        UserError: for a directory with none or several, a broken file (naming its line), or a cache that is not
            writable.
    """
    files = find_files(data)

    def facts() -> DataSetFacts:
        header = files.header
        kind = _propensity([files.root.name, *(path.name for path in files.files.values())])
        return DataSetFacts(features=header.features, labels=header.labels, propensity=kind)

    def fill(writer: PointsWriter) -> None:
        done = 0
        for split, points in files.points():
            writer.write(split, points)
            done += len(points)
            progress("points read", done, files.header.points)

    key = {**files.cache_key(), "name": files.root.name}
    path, summary = prepared(cache, "repository", key, facts, fill, progress)
    _require_labels(files, path)
    official = (summary.features, summary.labels) == AMAZON_670K
    kind, name = ("amazon670k", "Amazon-670K") if official else ("xc_repository", files.root.name)
    whole = AMAZON_670K_POINTS if official else None
    return source_of(path, summary, kind=kind, name=printable(name), unit="points", note=files.note, whole=whole)


def _require_labels(files: RepositoryFiles, directory: Path) -> None:
    """Refuse points without any label: a model cannot learn from them, and every metric is 0.

    Raises:
        UserError: naming the file.
    """
    for split in SPLITS:
        if not len(open_split(directory, split).labels.indices):
            file = files.files.get(split) or files.files["data"]
            raise UserError(
                f"{printable(str(file))}: no {split} point has a label; a line must start with its labels, "
                "as in `3,7 0:1 5:0.2`"
            )


def prepare_made_up(made_up: MadeUp, cache: Path, progress: Progress) -> DataSource:
    """Prepare the points of `made_up` under `cache`.

    Raises:
        UserError: for a cache that is not writable, or a disk without room for them.
    """

    def facts() -> DataSetFacts:
        return DataSetFacts(features=made_up.features, labels=made_up.labels, propensity="other")

    def fill(writer: PointsWriter) -> None:
        whole = made_up.points + made_up.test
        require_room(writer.directory, made_up.bytes_on_disk, f"{whole:,} points", "use fewer points")
        done = 0
        for split, points in made_up.chunks():
            writer.write(split, points)
            done += len(points)
            progress("synthetic points", done, whole)

    path, summary = prepared(cache, "synthetic", asdict(made_up), facts, fill, progress)
    return source_of(path, summary, kind="synthetic", name="SYNTHETIC points", unit="points", note=SYNTHETIC_NOTE)


def _propensity(names: list[str]) -> Propensity:
    """The likely kind of data set, from its file names."""
    text = " ".join(names).lower()
    return "amazon" if "amazon" in text else "wikipedia" if "wiki" in text else "other"
