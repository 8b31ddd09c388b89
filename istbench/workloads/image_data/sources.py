"""Batches for image classifiers: from decoded images, from files decoded for each batch, or noise."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from istbench.base.errors import UserError, printable
from istbench.workloads.base import Batch, opened
from istbench.workloads.image_data.cache import ListedSplit, open_decoded, open_listed
from istbench.workloads.image_data.decode import BrokenImage, cropped, in_order, read_file

_TEST_PIXELS = 2**20  # pixels of a test batch
_MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255  # of ImageNet's pixels, as for torchvision's models
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32) * 255


class Images(Protocol):
    """Labelled images of both splits. `labels`: of the training images, int64 [n]."""

    labels: Tensor

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Training images `indices`, augmented with `generator`: float32 [b, 3, h, w] and int64 [b]."""

    def plain_batch(self, indices: Tensor) -> Batch:
        """Training images `indices` without augmentation."""

    def test_batches(self) -> Iterator[Batch]:
        """The test images in order."""


class DecodedImages:
    """Images of up to 64 pixels, mapped from a prepared directory. All processes of a machine share the memory.

    The padding before the random crop is an eighth of the side: 4 pixels for 32.

    Raises:
        UserError: if the directory is missing or damaged.
    """

    def __init__(self, directory: Path, *, with_test: bool) -> None:
        summary, self._train, self._test = open_decoded(directory, with_test=with_test)
        self.labels = torch.tensor(self._train.labels)
        self._mean = np.array(summary.mean, np.float32)
        self._deviation = np.array(summary.deviation, np.float32)
        self._padding, self._test_batch = summary.resolution // 8, _test_batch(summary.resolution)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Training images with padding, a random crop and random mirroring."""
        images = cropped_and_mirrored(self._train.images[indices.numpy()], self._padding, generator)
        return normalised(images, self._mean, self._deviation), self.labels[indices]

    def plain_batch(self, indices: Tensor) -> Batch:
        """Training images without augmentation."""
        chosen = self._train.images[indices.numpy()]
        return normalised(chosen, self._mean, self._deviation), self.labels[indices]

    def test_batches(self) -> Iterator[Batch]:
        """The test images without augmentation."""
        test = opened(self._test)
        for first in range(0, len(test.labels), self._test_batch):
            chosen = slice(first, first + self._test_batch)
            images = normalised(test.images[chosen], self._mean, self._deviation)
            yield images, torch.from_numpy(test.labels[chosen])


class FileImages:
    """Images decoded from their files for each batch, in as many threads as torch uses.

    The shorter side is scaled to 8/7 of the resolution. Training uses a random square of the image, tests the
    middle.

    Raises:
        UserError: if the prepared directory is missing or damaged.
    """

    def __init__(self, directory: Path, resolution: int, *, with_test: bool) -> None:
        _, self._train, self._test = open_listed(directory, with_test=with_test)
        self.labels = torch.tensor(self._train.labels)
        self._resolution, self._test_batch = resolution, _test_batch(resolution)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Random squares, half of them mirrored."""
        count = len(indices)
        places = torch.rand(count, 2, generator=generator).tolist()
        mirrored = (torch.rand(count, generator=generator) < 0.5).numpy()
        images = self._read(self._train, indices.tolist(), [(across, down) for across, down in places])
        images[mirrored] = images[mirrored, :, :, ::-1]
        return normalised(images, _MEAN, _DEVIATION), self.labels[indices]

    def plain_batch(self, indices: Tensor) -> Batch:
        """The middle squares of training images."""
        images = self._read(self._train, indices.tolist(), [(0.5, 0.5)] * len(indices))
        return normalised(images, _MEAN, _DEVIATION), self.labels[indices]

    def test_batches(self) -> Iterator[Batch]:
        """The middle squares of the test images."""
        test = opened(self._test)
        for first in range(0, len(test.labels), self._test_batch):
            chosen = range(first, min(first + self._test_batch, len(test.labels)))
            images = self._read(test, list(chosen), [(0.5, 0.5)] * len(chosen))
            labels = test.labels[chosen.start : chosen.stop]
            yield normalised(images, _MEAN, _DEVIATION), torch.from_numpy(labels)

    def _read(self, split: ListedSplit, chosen: list[int], places: list[tuple[float, float]]) -> np.ndarray:
        """Squares of the images `chosen`, uint8 [b, 3, resolution, resolution]."""
        side = self._resolution * 8 // 7

        def read(item: tuple[int, tuple[float, float]]) -> np.ndarray:
            path = split.paths[item[0]]
            try:
                return cropped(read_file(path), self._resolution, side, item[1])
            except BrokenImage as why:  # it was not broken during the scan
                raise UserError(
                    f"{printable(str(path))} changed during the run: {why}; run the command again"
                ) from None

        # Read for each batch: a node sets its threads after `open`, and evaluates with another number of threads.
        threads = torch.get_num_threads()
        return np.stack(list(in_order(threads, read, zip(chosen, places, strict=True), ahead=4)))


class Noise:
    """Random pixels (float32) and classes in memory, for measurements of throughput."""

    _TEST_BATCH = 8

    def __init__(self, *, train: int, test: int, resolution: int, classes: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(count: int) -> Batch:
            images = torch.randn(count, 3, resolution, resolution, generator=generator)
            return images, torch.randint(classes, (count,), generator=generator)

        self._train, self.labels = draw(train)
        self._test, self._test_labels = draw(test)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Noise, without augmentation."""
        return self._train[indices], self.labels[indices]

    def plain_batch(self, indices: Tensor) -> Batch:
        """Noise."""
        return self._train[indices], self.labels[indices]

    def test_batches(self) -> Iterator[Batch]:
        """A little noise, for a short evaluation."""
        for first in range(0, len(self._test), self._TEST_BATCH):
            chosen = slice(first, first + self._TEST_BATCH)
            yield self._test[chosen], self._test_labels[chosen]


def cropped_and_mirrored(images: np.ndarray, padding: int, generator: torch.Generator) -> np.ndarray:
    """Pad each image with black, cut its size out at a random place, and mirror it with probability 1/2.

    Args:
        images: uint8 [b, 3, s, s]; not changed.
        padding: pixels on every side.
        generator: determines all random choices.
    """
    count, colours, side, _ = images.shape
    padded = np.zeros((count, colours, side + 2 * padding, side + 2 * padding), np.uint8)
    padded[:, :, padding : padding + side, padding : padding + side] = images
    places = torch.randint(0, 2 * padding + 1, (2, count), generator=generator).numpy()
    mirrored = (torch.rand(count, generator=generator) < 0.5).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(2, 3))
    cut = windows[np.arange(count), :, places[0], places[1]]
    cut[mirrored] = cut[mirrored, :, :, ::-1]
    return cut


def normalised(images: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> Tensor:
    """Images uint8 [b, 3, h, w] as float32: each colour minus `mean`, divided by `deviation` (float32 [3])."""
    scaled = images.astype(np.float32, order="C")
    scaled -= mean[:, None, None]
    scaled *= (1 / deviation)[:, None, None]
    return torch.from_numpy(scaled)


def _test_batch(resolution: int) -> int:
    return max(8, _TEST_PIXELS // resolution**2)
