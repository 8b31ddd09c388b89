"""Batches of images: augmented as the generator says, alike whoever asks; noise; and made ahead of the steps."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import folders, pixels

from istbench.base.errors import UserError
from istbench.studies.conformance.of_workloads import CHECKS
from istbench.workloads import images
from istbench.workloads.batches import ShardedBatches
from istbench.workloads.cifar10 import Cifar10, Cifar10Options
from istbench.workloads.imagenet import ImageNet, ImageNetOptions
from istbench.workloads.images import cropped_and_mirrored, normalised

WINDOWS = [(down, across) for down in range(5) for across in range(5)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def small(kind, tmp_path, progress):
    """A workload on a few image files, opened."""
    if kind == "decoded":
        workload = Cifar10(Cifar10Options(width=2))
    else:
        workload = ImageNet(ImageNetOptions(model="resnet18", resolution=72))
    root = folders(tmp_path / "data", side=90, suffix="jpg")
    workload.open(workload.prepare(root, tmp_path / "cache", progress))
    return workload


def test_crops_are_windows_of_the_padded_image_and_half_are_mirrored():
    images = pixels(400, 8).transpose(0, 3, 1, 2)
    before = images.copy()
    cut = cropped_and_mirrored(images, 2, generator())
    assert np.array_equal(images, before)
    padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)))
    places = []
    mirrored = 0
    for image, of in zip(cut, padded, strict=True):
        windows = {(down, across): of[:, down : down + 8, across : across + 8] for down, across in WINDOWS}
        plain = [place for place, window in windows.items() if np.array_equal(image, window)]
        turned = [place for place, window in windows.items() if np.array_equal(image, window[:, :, ::-1])]
        assert len(plain + turned) == 1
        places += plain + turned
        mirrored += len(turned)
    assert set(places) == set(WINDOWS)
    assert 160 < mirrored < 240


def test_normalised_pixels_are_spread_around_zero():
    images = pixels(64, 8).transpose(0, 3, 1, 2)
    mean, deviation = images.mean((0, 2, 3)).astype(np.float32), images.std((0, 2, 3)).astype(np.float32)
    found = normalised(images, mean, deviation)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    torch.testing.assert_close(found.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std((0, 2, 3), correction=0), torch.ones(3))


@pytest.mark.parametrize("kind", ["decoded", "files"])
def test_a_batch_is_that_of_its_indices_and_generator(tmp_path, no_progress, kind):
    workload = small(kind, tmp_path, no_progress)
    indices = torch.tensor([5, 0, 8])
    images, classes = workload.train_batch(indices, generator())
    side = 32 if kind == "decoded" else 72
    assert (images.shape, images.dtype) == ((3, 3, side, side), torch.float32)
    assert classes.tolist() == [1, 0, 2]
    assert torch.equal(workload.train_batch(indices, generator())[0], images)
    assert not torch.equal(workload.train_batch(indices, generator(1))[0], images)


@pytest.fixture
def intra_op_threads():
    """torch's number of threads, put back after the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("intra_op_threads")
def test_files_are_decoded_by_as_many_threads_as_the_node_has_then(tmp_path, no_progress, monkeypatch):
    """A node is told its threads once its data is open, and evaluates by others than it trains by."""
    torch.set_num_threads(2)
    workload = small("files", tmp_path, no_progress)
    in_order, asked = images.in_order, list[int]()

    def noted(threads, *work, **ahead):
        asked.append(threads)
        return in_order(threads, *work, **ahead)

    monkeypatch.setattr(images, "in_order", noted)
    torch.set_num_threads(1)
    with ThreadPoolExecutor(1) as maker:  # of batches made ahead
        maker.submit(workload.train_batch, torch.tensor([0]), generator()).result()
    torch.set_num_threads(3)
    next(iter(workload.test_batches()))
    assert asked == [1, 3]


@pytest.mark.parametrize("kind", ["decoded", "files"])
def test_the_test_images_are_all_there_in_order_and_stay_the_same(tmp_path, no_progress, kind):
    workload = small(kind, tmp_path, no_progress)
    first, again = ([*workload.test_batches()] for _ in range(2))
    assert torch.cat([classes for _, classes in first]).tolist() == [0, 0, 1, 1, 2, 2]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(first, again, strict=True))
    assert workload.train_classes().tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_two_workloads_on_the_same_cache_see_the_same_batches(tmp_path, no_progress):
    """Whatever the node: a batch follows from the seed, the step and the rank."""
    one, other = (small("decoded", tmp_path, no_progress) for _ in range(2))
    for rank in range(2):
        batches = ShardedBatches(9, 2, rank=rank, world_size=2, seed=3)
        given = [w.train_batch(batches.indices(1), batches.generator(1)) for w in (one, other)]
        assert torch.equal(given[0][0], given[1][0])


def test_noise_is_what_it_was():
    workload = ImageNet(ImageNetOptions(model="vgg12", width=2, resolution=32, classes=7, samples=20))
    source = workload.prepare(None, Path(), lambda *_: None)
    assert (source.kind, source.learnable, source.train) == ("synthetic", False, 20)
    assert workload.computed_bytes() == 36 * 3 * 32 * 32 * 4
    workload.open(source)
    images, classes = workload.train_batch(torch.arange(20), generator())
    drawn = torch.randn(20, 3, 32, 32, generator=generator(1))
    assert torch.equal(images, drawn)
    assert classes.max() < 7


@pytest.mark.parametrize(
    ("model", "resolution", "least"), [("inception_v3", 64, 75), ("alexnet", 32, 63), ("vgg12", 16, 32)]
)
def test_a_resolution_too_low_for_the_model_is_refused(model, resolution, least):
    with pytest.raises(UserError, match=f"{model} needs a resolution of at least {least}, not {resolution}"):
        ImageNetOptions(model=model, resolution=resolution)


def test_the_classes_of_the_folders_become_the_models(tmp_path, no_progress):
    options = ImageNetOptions(model="vgg12", width=2, resolution=32)
    first, worker = ImageNet(options), ImageNet(options)
    assert first.build_model().get_parameter("output.weight").shape[0] == 1000
    source = first.prepare(folders(tmp_path / "data"), tmp_path / "cache", no_progress)
    worker.open(source)
    for workload in (first, worker):
        assert workload.build_model().get_parameter("output.weight").shape[0] == 3
        assert workload.computed_bytes() == 0
    assert (source.kind, source.name, source.seen) == (
        "image_folders",
        "images in data",
        "images in data, 15 images",
    )


def test_targets_are_those_of_cifar10s_own_classes(tmp_path, no_progress):
    from istbench.workloads.image_data.cifar_batches import CLASSES

    workload = Cifar10(Cifar10Options(images=50))
    assert workload.targets == (0.8, 0.85, 0.88, 0.9)
    source = workload.prepare(folders(tmp_path / "ten", CLASSES, train=1, test=1), tmp_path / "cache", no_progress)
    assert workload.targets == (0.8, 0.85, 0.88, 0.9)
    assert source.seen == "CIFAR-10 as files in ten, 20 of 60,000 images: a subset"
    workload.prepare(folders(tmp_path / "three"), tmp_path / "cache", no_progress)
    assert workload.targets == ()
    assert "synthetic" in workload.prepare(None, tmp_path / "cache", no_progress).note
    assert workload.targets == ()


class _Scores(torch.nn.Module):
    """Class c scores c: the k largest are the last k."""

    def forward(self, images):
        return torch.arange(12.0).expand(len(images), -1)


def test_top_k_is_reported_where_there_are_more_classes():
    workload = ImageNet(ImageNetOptions(model="vgg12", resolution=32))
    batches = [
        (torch.zeros(4, 3, 32, 32), torch.tensor([11, 7, 6, 0])),
        (torch.zeros(1, 3, 32, 32), torch.tensor([2])),
    ]
    found = workload.evaluate(_Scores(), iter(batches))
    assert {name: found[name] for name in ("accuracy", "top5", "top10")} == {
        "accuracy": 0.2,
        "top5": 0.4,
        "top10": 0.8,
    }
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 5))
    assert set(workload.evaluate(model, iter([(batches[0][0], torch.zeros(4).long())]))) == {"accuracy", "loss"}


@pytest.mark.parametrize(
    "workload",
    [
        Cifar10(Cifar10Options(width=4, images=100)),
        ImageNet(ImageNetOptions(model="vgg12", width=4, resolution=32, classes=12, samples=50)),
    ],
    ids=["cifar10", "imagenet"],
)
def test_both_keep_the_contract_of_workloads(tmp_path, no_progress, workload):
    workload.open(workload.prepare(None, tmp_path, no_progress))
    said = [check(workload) for check in CHECKS]
    assert said[0].startswith("8 groups" if workload.name == "cifar10" else "11 groups")
