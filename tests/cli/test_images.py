"""The image workloads by the command line: made ready, trained on tiny data, and refused in one line."""

import json
import os

import numpy as np
import pytest
from PIL import Image

TINY = ["--workload", "cifar10", "--workload-set", "width=2", "--nodes", "2", "--batch-size", "8"]


@pytest.fixture
def images(tmp_path):
    """Image folders, 16 training images of each of two classes."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 16), ("val", 4)):
        for name in ("day", "night"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for place in range(count):
                pixels = draw.integers(0, 128, (32, 32, 3)) + 127 * (name == "day")
                image = Image.fromarray(pixels.astype(np.uint8))
                image.save(tmp_path / "images" / split / name / f"{place}.png")
    return tmp_path / "images"


@pytest.mark.processes
def test_ist_trains_on_image_folders(tmp_path, istbench, images):
    given = [*TINY, "--method", "ist", "--steps", 2, "--data", images, "--out", tmp_path, "--json"]
    status, out, said = istbench("run", *given)
    assert status == 0, said
    result = json.loads(out)
    assert (result["data"], result["data_seen"]) == ("image_folders", "images in images, 40 images")
    assert result["targets"] == []
    assert set(result["final"]) == {"accuracy", "loss"}


def test_image_folders_are_made_ready_ahead_of_the_run(istbench, images):
    given = ["imagenet", "--data", images, "--workload-set", "resolution=96"]
    for _ in range(2):
        status, out, said = istbench("data", *given)
        assert status == 0, said
        assert out.startswith("image_folders: 32 training and 8 test samples in ")
    os.truncate(images / "train" / "day" / "3.png", 100)
    status, _, said = istbench("data", *given)
    assert status == 2
    assert "1 of 40 images cannot be decoded" in said.splitlines()[-1]
    assert "day/3.png" in said.splitlines()[-1]


@pytest.mark.processes
def test_a_broken_image_ends_the_run_before_it_starts(tmp_path, istbench, images):
    (images / "val" / "day" / "0.png").write_bytes(b"no image")
    status, _, said = istbench("run", *TINY, "--method", "ddp", "--data", images, "--out", tmp_path / "out")
    assert status == 2
    assert "val/day/0.png (neither JPEG nor PNG); replace or remove them" in said.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.processes
def test_noise_has_no_target(tmp_path, istbench):
    given = ["--workload", "imagenet", "--method", "ddp", "--nodes", 2, "--target", 0.5, "--out", tmp_path]
    status, _, said = istbench("run", *given)
    assert status == 2
    assert "imagenet without --data trains on noise" in said
    assert "leave out --target" in said


def test_imagenet_has_nothing_to_fetch_without_a_directory(istbench):
    status, _, said = istbench("data", "imagenet")
    assert status == 2
    assert "reads --data DIR" in said


def test_a_source_and_a_directory_are_one_too_many(istbench, images):
    status, _, said = istbench("data", "cifar10", "--data", images, "--source", "synthetic")
    assert status == 2
    assert "give one of them" in said
