"""The synthetic images: beyond a linear model, within reach of a small convolutional network."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from istbench.workloads.cifar10 import Cifar10, Cifar10Options
from istbench.workloads.image_data.synthetic import CLASSES, Textures, draw

TRAIN, TEST = 3_000, 600
CHANCE = 1 / len(CLASSES)


def images(count, seed):
    """Images float32 [count, 3, 32, 32] around zero, and their classes."""
    labels = np.arange(count) % len(CLASSES)
    drawn = draw(labels, np.random.default_rng(seed)).astype(np.float32)
    return torch.from_numpy((drawn - 127.5) / 64), torch.from_numpy(labels)


@pytest.fixture(scope="module")
def data():
    return *images(TRAIN, 1), *images(TEST, 2)


def accuracy(scores, labels):
    return float((scores.argmax(1) == labels).float().mean())


def test_a_linear_model_does_little_better_than_guess(data):
    train, labels, test, test_labels = data
    inputs, test_inputs = (F.pad(part.flatten(1), (0, 1), value=1.0) for part in (train, test))
    gram, target = inputs.T @ inputs, inputs.T @ F.one_hot(labels, len(CLASSES)).float()
    for ridge in (1e3, 1e5):
        weights = torch.cholesky_solve(target, torch.linalg.cholesky(gram + ridge * torch.eye(len(gram))))
        assert accuracy(test_inputs @ weights, test_labels) < 2 * CHANCE


def test_every_class_has_the_same_mean_image(data):
    train, labels, _, _ = data
    means = torch.stack([train[labels == number].mean(0) for number in range(len(CLASSES))])
    expected = train.var(0) * len(CLASSES) / TRAIN  # of a mean over so many images
    assert 0.9 < float((means.var(0) / expected).mean()) < 1.1


def test_a_small_convolutional_network_learns(data):
    train, labels, test, test_labels = data
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 7),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 24, 3),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(24, len(CLASSES)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for step in range(200):
        chosen = torch.arange(64) + 64 * step
        loss = F.cross_entropy(model(train[chosen % TRAIN]), labels[chosen % TRAIN])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        assert accuracy(model.eval()(test), test_labels) > 5 * CHANCE


def test_a_seed_is_a_data_set(tmp_path, no_progress):
    one, again, other = (
        Cifar10(Cifar10Options(images=600, data_seed=seed)).prepare(None, tmp_path / name, no_progress)
        for seed, name in ((0, "a"), (0, "b"), (1, "a"))
    )
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert (one.kind, one.train, one.test) == ("synthetic", 600, 120)
    assert one.seen == "SYNTHETIC images, 720 images"


def test_both_splits_have_every_class_alike(no_progress):
    _, labels, is_test = next(Textures(train=100, seed=0).chunks(no_progress))
    assert np.bincount(labels[~is_test]).tolist() == [10] * 10
    assert np.bincount(labels[is_test]).tolist() == [2] * 10
    drawn = list(Textures(train=700, seed=0).chunks(no_progress))
    assert [[len(part) for part in chunk] for chunk in drawn] == [[500] * 3, [340] * 3]
