"""Images from files: converted to RGB, found broken before training, prepared once."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import CLASSES, decoded, folders, pixels, save
from PIL import Image
from torchvision.datasets.folder import pil_loader

from istbench.base.errors import UserError
from istbench.workloads.cifar10 import Cifar10, Cifar10Options
from istbench.workloads.image_data import build, decode
from istbench.workloads.image_data.build import ListedSummary, open_listed
from istbench.workloads.image_data.decode import BrokenImage, cropped, scaled, whole
from istbench.workloads.imagenet import ImageNet, ImageNetOptions
from istbench.workloads.prepared import SPLITS, open_summary

TINY = ImageNetOptions(model="vgg12", width=4, resolution=32)
LARGE = ImageNetOptions(model="resnet18", resolution=72)


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("RGB", "jpg"), ("L", "jpg"), ("CMYK", "jpg"), ("P", "png"), ("RGBA", "png"), ("LA", "png"), ("1", "png")],
)
def test_every_mode_becomes_rgb_as_in_torchvision(tmp_path, mode, suffix):
    path = tmp_path / f"image.{suffix}"
    save(path, pixels(1)[0], mode)
    found = scaled(path.read_bytes(), 32)
    assert found.converted == (mode != "RGB")
    assert not found.resized
    assert np.array_equal(found.image.transpose(1, 2, 0), np.asarray(pil_loader(str(path))))


def test_16_bits_of_grey_are_scaled_to_8(tmp_path):
    levels = np.concatenate([257 * np.arange(256), [0, 128, 129, 9_000, 50_000, 65_406, 65_407, 65_535]])
    grey = np.resize(levels, (32, 32)).astype(np.uint16)
    Image.fromarray(grey).save(tmp_path / "image.png")
    found = scaled((tmp_path / "image.png").read_bytes(), 32)
    assert found.converted
    assert np.array_equal(found.image, np.broadcast_to(np.round(grey / 257), (3, 32, 32)))


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_its_exif_data_says(tmp_path, suffix, orientation):
    content = np.zeros((32, 32, 3), np.uint8)
    content[:16, :16] = 255  # one bright corner
    exif = Image.Exif()
    exif[0x112] = orientation
    Image.fromarray(content).save(tmp_path / f"image.{suffix}", exif=exif)
    found = scaled((tmp_path / f"image.{suffix}").read_bytes(), 32).image
    ((row,), (column,)) = np.nonzero(found[0, ::31, ::31] > 128)  # of four corners, the bright one
    assert (row == 0, column == 0) == (orientation in (1, 2, 5, 6), orientation in (1, 4, 5, 8))


def test_damaged_exif_data_turns_no_image(tmp_path):
    damaged = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\xff\xff\xff\xff\xff\xff\x01\0\0\0"
    Image.fromarray(pixels(1)[0]).save(tmp_path / "image.jpg", exif=damaged)
    found = scaled((tmp_path / "image.jpg").read_bytes(), 32).image
    assert np.array_equal(found.transpose(1, 2, 0), np.asarray(pil_loader(str(tmp_path / "image.jpg"))))


@pytest.mark.parametrize("size", [(40, 50), (50, 40), (64, 64), (20, 33), (33, 1)])
def test_other_sizes_are_scaled_and_cut_to_the_middle_as_in_torchvision(tmp_path, size):
    from torchvision.transforms.v2.functional import center_crop, resize

    image = Image.fromarray(pixels(1, 64)[0]).resize(size)
    image.save(tmp_path / "image.png")
    found = scaled((tmp_path / "image.png").read_bytes(), 32)
    assert found.resized
    expected = np.asarray(center_crop(resize(image, [32]), [32]))
    assert np.array_equal(found.image.transpose(1, 2, 0), expected)


@pytest.mark.parametrize(("side", "resized"), [(32, False), (64, True), (256, True)])
def test_a_jpeg_that_is_decoded_at_a_fraction_of_its_size_counts_as_scaled(tmp_path, side, resized):
    save(tmp_path / "image.jpg", pixels(1, side)[0])
    found = scaled((tmp_path / "image.jpg").read_bytes(), 32)
    assert found.image.shape == (3, 32, 32)
    assert found.resized == resized


def test_a_crop_is_where_it_is_asked_for(tmp_path):
    across = np.broadcast_to(np.arange(64, dtype=np.uint8)[None, :, None], (64, 64, 3))
    save(tmp_path / "image.png", across)
    content = (tmp_path / "image.png").read_bytes()
    assert cropped(content, 32, 64, (0.0, 0.0))[0, 0].tolist() == list(range(32))
    assert cropped(content, 32, 64, (1.0, 0.5))[0, 0].tolist() == list(range(32, 64))


def broken(path, fault):
    if fault == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    elif fault == "empty":
        os.truncate(path, 0)
    elif fault == "text":
        path.write_text("no image")
    elif fault == "floats":
        Image.fromarray(np.ones((32, 32), np.float32)).save(path, "TIFF")
    elif fault == "gif":
        Image.fromarray(pixels(1)[0]).save(path, "GIF")
    elif fault == "a folder":
        path.unlink()
        path.mkdir()
    elif fault == "a pipe":
        path.unlink()
        os.mkfifo(path)


@pytest.mark.parametrize("fault", ["truncated", "empty", "text", "gif", "floats", "a folder", "a pipe"])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("options", [TINY, LARGE])
def test_a_broken_image_is_found_before_training(tmp_path, no_progress, fault, suffix, options):
    root = folders(tmp_path / "data", suffix=suffix)
    broken(root / "train" / "dog" / f"1.{suffix}", fault)
    with pytest.raises(UserError, match=rf"dog/1.{suffix}.*; replace (the file|or remove them)") as caught:
        ImageNet(options).prepare(root, tmp_path / "cache", no_progress)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_all_broken_images_are_counted_and_the_first_named(tmp_path, no_progress, monkeypatch):
    monkeypatch.setattr(build, "_CHUNK", 2)
    root = folders(tmp_path / "data")
    for name in CLASSES:
        for place in (0, 1):
            broken(root / "train" / name / f"{place}.png", "truncated")
    with pytest.raises(
        UserError, match=r"^6 of 15 images cannot be decoded: .*cat/0.png .* and 3 more; "
    ) as caught:
        Cifar10().prepare(root, tmp_path / "cache", no_progress)
    assert "cat/1.png" in str(caught.value)
    assert "eel" not in str(caught.value)


def test_an_image_of_endless_size_is_refused(tmp_path, monkeypatch):
    save(tmp_path / "image.png", pixels(1)[0])
    monkeypatch.setattr(decode, "MOST_PIXELS", 1_000)
    with pytest.raises(BrokenImage, match="32 x 32 pixels are too many"):
        scaled((tmp_path / "image.png").read_bytes(), 32)
    Image.new("RGB", (1, 101)).save(tmp_path / "image.png")
    with pytest.raises(BrokenImage, match="1 x 101 pixels are too narrow"):
        whole((tmp_path / "image.png").read_bytes())


def test_images_are_decoded_once(tmp_path, no_progress, monkeypatch):
    root = folders(tmp_path / "data")
    told = []
    source = Cifar10().prepare(root, tmp_path / "cache", lambda _, done, total: told.append((done, total)))
    assert (told[0], told[-1]) == ((0, 15), (15, 15))
    monkeypatch.setattr(build, "read_file", lambda path: pytest.fail(f"read {path} again"))
    assert Cifar10().prepare(root, tmp_path / "cache", no_progress) == source
    _, train, test = decoded(source)
    assert isinstance(train.samples, np.memmap)
    assert not train.samples.flags.writeable
    for split, files in (("train", train), ("test", test)):
        paths = sorted((root / split).rglob("*.png"))
        for path, image in zip(paths, files.samples, strict=True):
            assert np.array_equal(np.asarray(Image.open(path)), image.transpose(1, 2, 0))


def test_a_changed_file_is_decoded_again(tmp_path, no_progress):
    root = folders(tmp_path / "data")
    before = Cifar10().prepare(root, tmp_path / "cache", no_progress)
    save(root / "train" / "cat" / "0.png", pixels(1, seed=77)[0])
    after = Cifar10().prepare(root, tmp_path / "cache", no_progress)
    assert before.fingerprint != after.fingerprint


def test_large_images_are_scanned_once_and_listed(tmp_path, no_progress, monkeypatch):
    root = folders(tmp_path / "data", side=80)
    source = ImageNet(LARGE).prepare(root, tmp_path / "cache", no_progress)
    monkeypatch.setattr(build, "read_file", lambda path: pytest.fail(f"read {path} again"))
    assert ImageNet(LARGE).prepare(root, tmp_path / "cache", no_progress) == source
    directory = Path(source.path)
    summary = open_summary(directory, ListedSummary)
    train, test = (open_listed(directory, summary, split) for split in SPLITS)
    assert (summary.classes, len(train), len(test)) == (CLASSES, 9, 6)
    assert train.samples[4] == root / "train" / "dog" / "1.png"
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_large_images_need_a_folder_whose_name_can_be_written_down(tmp_path, no_progress, monkeypatch):
    root = folders(tmp_path / os.fsdecode(b"caf\xe9") / "data")
    Cifar10().prepare(root, tmp_path / "cache", no_progress)
    monkeypatch.setattr(build, "read_file", lambda path: pytest.fail(f"decoded {path} before"))
    with pytest.raises(UserError, match=r"caf\\udce9/data: the name of .* must be text in UTF-8; rename it"):
        ImageNet(LARGE).prepare(root, tmp_path / "cache", no_progress)


def test_an_image_that_goes_bad_after_the_scan_is_named(tmp_path, no_progress):
    root = folders(tmp_path / "data", side=80)
    workload = ImageNet(LARGE)
    workload.open(workload.prepare(root, tmp_path / "cache", no_progress))
    broken(root / "train" / "cat" / "1.png", "truncated")
    with pytest.raises(UserError, match="cat/1.png changed during the run: .*; run the command again"):
        workload.train_batch(torch.tensor([0, 1]), torch.Generator())


def test_what_was_converted_and_scaled_is_told(tmp_path, no_progress):
    root = folders(tmp_path / "data")
    save(root / "train" / "cat" / "0.png", pixels(1)[0], "L")
    save(root / "train" / "cat" / "1.png", pixels(1, 40)[0])
    note = Cifar10().prepare(root, tmp_path / "cache", no_progress).note
    assert note == "1 of 15 images were converted to RGB; 1 of 15 images were scaled and cut to 32 x 32"


@pytest.mark.parametrize(
    "change",
    [
        lambda directory: os.truncate(directory / "train_images.npy", 5_000),
        lambda directory: (directory / "test_labels.npy").unlink(),
        lambda directory: np.save(directory / "train_labels.npy", np.full(9, 3)),
        lambda directory: (directory / "prepared.json").write_text("{}"),
        lambda directory: (directory / "prepared.json").write_text(
            (directory / "prepared.json").read_text().replace('"resolution": 32', '"resolution": 1000000')
        ),
    ],
)
def test_a_damaged_cache_is_made_again(tmp_path, no_progress, change):
    root = folders(tmp_path / "data")
    source = Cifar10().prepare(root, tmp_path / "cache", no_progress)
    change(Path(source.path))
    with pytest.raises(UserError, match="prepared data is damaged .*: remove .*, and istbench makes it again"):
        decoded(source)
    assert Cifar10().prepare(root, tmp_path / "cache", no_progress) == source
    decoded(source)


def test_images_that_the_disk_cannot_hold_are_refused(tmp_path, no_progress, monkeypatch):
    usage = shutil._ntuple_diskusage(2**40, 2**40 - 10, 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"15 images takes .*use a lower resolution.*ISTBENCH_CACHE"):
        Cifar10().prepare(folders(tmp_path / "data"), tmp_path / "cache", no_progress)
    with pytest.raises(UserError, match="GB are free in .*; use fewer images"):
        Cifar10(Cifar10Options(images=2**40)).prepare(None, tmp_path / "cache", no_progress)
