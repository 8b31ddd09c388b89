"""Where an image classifier's batches come from: decoded images, files decoded on the way, or noise."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from istbench.errors import UserError, printable
from istbench.workloads.base import Batch
from istbench.workloads.image_data.augment import cropped_and_mirrored, normalised
from istbench.workloads.image_data.cache import Listed, open_decoded, open_listed
from istbench.workloads.image_data.decode import BrokenImage, cropped, read_file
from istbench.workloads.prepared import in_order

_TEST_PIXELS = 2**20  # of a batch
_MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255  # of ImageNet's pixels, as torchvision's models have it
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32) * 255


class Images(Protocol):
    """Labelled images of both splits. `labels`: of the training images, int64 [n]."""

    labels: Tensor

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Training images `indices`, augmented as `generator` says: float32 [b, 3, h, w] and int64 [b]."""

    def test_batches(self) -> Iterator[Batch]:
        """The test images in order."""


class DecodedImages:
    """Images of up to 64 pixels, mapped from a prepared directory: shared by all processes of a machine.

    An eighth of the side is padded before the random crop: 4 pixels of 32.

    Raises:
        UserError: when the directory is missing or damaged.
    """

    def __init__(self, directory: Path) -> None:
        summary, self._train, self._test = open_decoded(directory)
        self.labels = torch.tensor(self._train.labels)
        self._mean = np.array(summary.mean, np.float32)
        self._deviation = np.array(summary.deviation, np.float32)
        self._padding, self._test_batch = summary.resolution // 8, _test_batch(summary.resolution)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Images padded, cropped and mirrored at random."""
        images = cropped_and_mirrored(self._train.images[indices.numpy()], self._padding, generator)
        return normalised(images, self._mean, self._deviation), self.labels[indices]

    def test_batches(self) -> Iterator[Batch]:
        """The test images as they are."""
        for first in range(0, len(self._test.labels), self._test_batch):
            chosen = slice(first, first + self._test_batch)
            images = normalised(self._test.images[chosen], self._mean, self._deviation)
            yield images, torch.from_numpy(self._test.labels[chosen])


class FileImages:
    """Images decoded from their files when they are asked for, by as many threads as torch may use then.

    An image's shorter side is scaled to 8/7 of the resolution, then a random square of it is taken to train on, its
    middle to test on.

    Raises:
        UserError: when the prepared directory is missing or damaged.
    """

    def __init__(self, directory: Path, resolution: int) -> None:
        _, self._train, self._test = open_listed(directory)
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

    def test_batches(self) -> Iterator[Batch]:
        """The middles of the test images."""
        for first in range(0, len(self._test.labels), self._test_batch):
            chosen = range(first, min(first + self._test_batch, len(self._test.labels)))
            images = self._read(self._test, list(chosen), [(0.5, 0.5)] * len(chosen))
            labels = self._test.labels[chosen.start : chosen.stop]
            yield normalised(images, _MEAN, _DEVIATION), torch.from_numpy(labels)

    def _read(self, split: Listed, chosen: list[int], places: list[tuple[float, float]]) -> np.ndarray:
        """Squares of the images `chosen`, uint8 [b, 3, resolution, resolution]."""
        side = self._resolution * 8 // 7

        def read(item: tuple[int, tuple[float, float]]) -> np.ndarray:
            path = split.paths[item[0]]
            try:
                return cropped(read_file(path), self._resolution, side, item[1])
            except BrokenImage as why:  # it was whole when it was scanned
                raise UserError(
                    f"{printable(str(path))} changed during the run: {why}; run the command again"
                ) from None

        # Asked for anew: a node sets its threads after opening the data, and evaluates by others than it trains by.
        threads = torch.get_num_threads()
        return np.stack(list(in_order(threads, read, zip(chosen, places, strict=True), ahead=4)))


class Noise:
    """Random pixels and classes, float32, drawn into memory: for throughput, there is nothing to learn."""

    _TEST_BATCH = 8

    def __init__(self, *, train: int, test: int, resolution: int, classes: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(count: int) -> Batch:
            images = torch.randn(count, 3, resolution, resolution, generator=generator)
            return images, torch.randint(classes, (count,), generator=generator)

        self._train, self.labels = draw(train)
        self._test, self._test_labels = draw(test)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Noise; nothing is augmented."""
        return self._train[indices], self.labels[indices]

    def test_batches(self) -> Iterator[Batch]:
        """A little noise, so that an evaluation takes little time."""
        for first in range(0, len(self._test), self._TEST_BATCH):
            chosen = slice(first, first + self._TEST_BATCH)
            yield self._test[chosen], self._test_labels[chosen]


def _test_batch(resolution: int) -> int:
    return max(8, _TEST_PIXELS // resolution**2)
