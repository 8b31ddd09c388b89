"""Find image folders: train/CLASS/*.jpg with test/ or val/ beside it, or Tiny ImageNet's layout."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from istbench.base.decode import read_text
from istbench.base.errors import UserError, printable
from istbench.base.files import kind_at
from istbench.workloads.prepared import files_digest, listed, named_errors, utf8_name, visible

MOST_CLASSES = 30_000
SUFFIXES = (".jpg", ".jpeg", ".png")
_OTHER_IMAGES = (
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jxl", ".pgm", ".ppm", ".tif", ".tiff",
    ".webp",
)  # fmt: skip
_TEST_NAMES = ("test", "val", "validation")
_ANNOTATIONS = "val_annotations.txt"
_EXPECTED = "expected train/CLASS/*.jpg (or .jpeg, .png), and the same under test/ or val/"
_LONGEST_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """Image files, training files first, each split sorted by class and name.

    Attributes:
        root: the folder of the splits.
        classes: class names, in the order of their labels.
        paths, labels, is_test: path, class (int64 [n]) and split (bool [n]) of each file.
    """

    root: Path
    classes: tuple[str, ...]
    paths: Sequence[Path]
    labels: np.ndarray
    is_test: np.ndarray

    @property
    def shown_name(self) -> str:
        """The name of the folder, for readers."""
        return printable(self.root.name)[:_LONGEST_SHOWN]

    def cache_key(self) -> dict[str, Any]:
        """A JSON-ready key from names, sizes, times, classes and splits of the files; raises as `files_digest`."""
        marks = 2 * self.labels + self.is_test
        return {"root": str(self.root), "files": files_digest(self.root, self.paths, "an image", marks)}


def find_image_files(data: Path) -> ImageFiles:
    """The images in directory `data`, or in its only folder with a train/.

    Raises:
        UserError: if the directory is missing, empty or in another layout, a class folder has no image, or a class
            is only in the test split; naming the place.
    """
    with named_errors("the images"):
        root = find_root(data)
        test = _test_folder(root)
        train_files = _class_files(root / "train")
        classes = tuple(train_files)
        annotated = test / _ANNOTATIONS
        test_files = _annotated(annotated) if kind_at(annotated) == "file" else _class_files(test)
    unknown = [name for name in test_files if name not in train_files]
    if unknown:
        raise UserError(
            f"{printable(str(test))}: {listed(unknown)}: not a class in {printable(str(root / 'train'))}; "
            "add training images of it, or remove it"
        )
    number = {name: place for place, name in enumerate(classes)}
    members = [
        (path, number[name], is_test)
        for is_test, files in ((False, train_files), (True, test_files))
        for name in sorted(files)
        for path in files[name]
    ]
    return ImageFiles(
        root=root,
        classes=classes,
        paths=[path for path, _, _ in members],
        labels=np.array([label for _, label, _ in members], np.int64),
        is_test=np.array([is_test for _, _, is_test in members], bool),
    )


def find_root(data: Path) -> Path:
    """The folder of the splits: `data`, or its only folder with a train/.

    Raises:
        UserError: if there is none.
    """
    if (kind := kind_at(data)) != "directory":
        what = "not a directory; extract archives first" if kind else "no such directory"
        raise _unfit(data, what)
    if kind_at(data / "train") == "directory":
        return data.resolve()
    inner = sorted(folder for folder in visible(data) if kind_at(folder / "train") == "directory")
    if len(inner) > 1:
        raise UserError(f"{printable(str(data))}: images in {listed(inner)}; give one of these folders")
    if inner:
        return inner[0].resolve()
    raise _unfit(data, "it has no train/" if any(data.iterdir()) else "empty")


def _test_folder(root: Path) -> Path:
    there = [root / name for name in _TEST_NAMES if _holds_labels(root / name)]
    if not there:
        raise _unfit(root, "no test images")
    if len(there) > 1:
        raise UserError(f"{printable(str(root))}: {listed(there)}: keep one folder of test images; move the others")
    return there[0]


def _holds_labels(folder: Path) -> bool:
    """Whether `folder` has class folders or annotations; Tiny ImageNet's test/images has neither."""
    if kind_at(folder) != "directory":
        return False
    inner = [path.name for path in visible(folder) if kind_at(path) == "directory"]
    return kind_at(folder / _ANNOTATIONS) == "file" or any(name != "images" for name in inner)


def _class_files(split: Path) -> dict[str, list[Path]]:
    """The images in every class folder of `split`, by class."""
    folders = [path.name for path in visible(split) if kind_at(path) == "directory"]
    names = sorted(utf8_name(name, split, "a class's folder") for name in folders)
    if len(names) < 2:
        raise _unfit(split, "it has fewer than two class folders")
    if len(names) > MOST_CLASSES:
        raise UserError(f"{printable(str(split))}: more than {MOST_CLASSES:,} class folders; leave some out")
    return {name: _images_in(split / name) for name in names}


def _images_in(folder: Path) -> list[Path]:
    """The images in class folder `folder`, or in its images/ as in Tiny ImageNet."""
    found = list(_with_images(folder)) or list(_with_images(folder / "images"))
    other = next((path for path in found if path.suffix.lower() in _OTHER_IMAGES), None)
    if other is not None:
        raise UserError(f"{printable(str(other))}: only {', '.join(SUFFIXES)} are read; convert it or remove it")
    if not found:
        where = printable(str(folder))
        raise UserError(f"{where}: no image in this class folder ({', '.join(SUFFIXES)}); add some or remove it")
    inner = next((path for path in visible(folder) if path not in found and kind_at(path) == "directory"), None)
    if inner is not None and found[0].parent == folder:
        raise UserError(f"{printable(str(inner))}: a folder beside the images of a class; move its images up")
    return sorted(found)


def _with_images(folder: Path) -> Iterator[Path]:
    if kind_at(folder) == "directory":
        yield from (path for path in visible(folder) if path.suffix.lower() in (*SUFFIXES, *_OTHER_IMAGES))


def _annotated(annotations: Path) -> dict[str, list[Path]]:
    """The images of Tiny ImageNet's val_annotations.txt by class. Its lines have file and class, tab-separated."""
    images = annotations.parent / "images"
    files: dict[str, list[Path]] = {}
    for number, line in enumerate(read_text(annotations, "val_annotations.txt").splitlines(), start=1):
        name, _, rest = line.partition("\t")
        label = rest.partition("\t")[0]
        if not name or not label or Path(name).name != name:
            where = printable(str(annotations))
            raise UserError(f"{where}, line {number}: expected a file name, a tab and its class; correct the line")
        files.setdefault(label, []).append(images / name)
    if not files:
        raise UserError(f"{printable(str(annotations))}: it names no image; extract the archive again")
    return {label: sorted(set(paths)) for label, paths in files.items()}


def _unfit(data: Path, what: str) -> UserError:
    return UserError(printable(f"{data}: {what}; {_EXPECTED}"))
