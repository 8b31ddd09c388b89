"""Image folders: which layouts are read, and what is said of those that are not."""

import os
import shutil

import numpy as np
import pytest
from image_files import CLASSES, folders, pixels, save, tiny_imagenet

from istbench.base.errors import UserError
from istbench.workloads.image_data.folders import find_image_files


@pytest.mark.parametrize("test_name", ["test", "val", "validation"])
def test_class_folders_are_read_in_the_order_of_their_names(tmp_path, test_name):
    files = find_image_files(folders(tmp_path, test_name=test_name))
    assert files.classes == CLASSES
    assert files.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 1, 1, 2, 2]
    assert files.is_test.tolist() == [False] * 9 + [True] * 6
    assert [path.parent.name for path in files.paths] == [CLASSES[label] for label in files.labels]
    assert files.paths[:3] == [tmp_path / "train" / "cat" / f"{place}.png" for place in range(3)]


def test_the_layout_of_tiny_imagenet_is_read(tmp_path):
    files = find_image_files(tiny_imagenet(tmp_path))
    assert files.classes == CLASSES
    assert files.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2]
    assert [path.name for path in files.paths[9:]] == ["val_0.JPEG", "val_1.JPEG", "val_2.JPEG"]


def test_the_folder_above_is_as_good(tmp_path):
    folders(tmp_path / "pack")
    assert find_image_files(tmp_path).root == tmp_path / "pack"
    folders(tmp_path / "other")
    with pytest.raises(UserError, match=f"^{tmp_path}: images in .*other, .*pack; give one of these"):
        find_image_files(tmp_path)


def test_the_key_follows_the_files(tmp_path):
    folders(tmp_path)
    key = find_image_files(tmp_path).cache_key()
    assert find_image_files(tmp_path).cache_key() == key
    os.utime(tmp_path / "train" / "cat" / "0.png", (1, 1))
    assert find_image_files(tmp_path).cache_key() != key


def _remove(*parts):
    return lambda root: shutil.rmtree(root.joinpath(*parts))


def _empty(root):
    for path in (root / "train" / "dog").iterdir():
        path.rename(path.with_suffix(".txt"))


BROKEN = {
    "no train": (_remove("train"), "it has no train/; expected train/CLASS"),
    "no test": (_remove("test"), "no test images; expected train/CLASS"),
    "nothing": (lambda root: [shutil.rmtree(path) for path in root.iterdir()] and None, "empty; expected train/"),
    "gone": (shutil.rmtree, "no such directory; expected train/CLASS"),
    "a class without images": (_empty, "train/dog: no image in this class folder .*; add some or remove it"),
    "a class only tested on": (
        lambda root: save(root / "test" / "fox" / "0.png", pixels(1)[0]),
        "test: fox: not a class in .*train; add training images of it, or remove it",
    ),
    "one class": (lambda root: [_remove("train", name)(root) for name in CLASSES[:2]] and None, "fewer than two"),
    "another kind of image": (
        lambda root: save(root / "train" / "cat" / "9.bmp", pixels(1)[0]),
        "9.bmp: only .jpg, .jpeg, .png are read; convert it or remove it",
    ),
    "two test splits": (
        lambda root: shutil.copytree(root / "test", root / "val") and None,
        "keep one folder",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_wrong_layout_is_named_in_one_line(tmp_path, fault):
    root = folders(tmp_path / "data")
    change, says = BROKEN[fault]
    change(root)
    with pytest.raises(UserError, match=says) as caught:
        find_image_files(root)
    assert str(root) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_archive_is_to_be_extracted(tmp_path):
    (tmp_path / "images.tar").write_bytes(b"archive")
    with pytest.raises(UserError, match="images.tar: not a directory; extract archives first"):
        find_image_files(tmp_path / "images.tar")


@pytest.mark.parametrize("line", ["val_0.JPEG", "\tcat", "../train/cat/images/cat_0.JPEG\tcat", ""])
def test_annotations_that_name_no_image_are_refused(tmp_path, line):
    root = tiny_imagenet(tmp_path)
    file = root / "val" / "val_annotations.txt"
    file.write_text("" if not line else f"{file.read_text()}{line}\n")
    with pytest.raises(UserError, match="val_annotations.txt(, line 4: expected|: it names no image)"):
        find_image_files(root)


def test_a_file_that_is_gone_is_named(tmp_path):
    root = tiny_imagenet(tmp_path)
    (root / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(UserError, match="val_1.JPEG: No such file"):
        find_image_files(root).cache_key()


def test_labels_are_whole_numbers(tmp_path):
    assert find_image_files(folders(tmp_path)).labels.dtype == np.int64
