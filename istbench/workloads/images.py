"""The base class of image classifiers; batches of decoded images, of files decoded for each batch, or of noise."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from istbench.base.errors import UserError, printable
from istbench.workloads.base import Batch, opened
from istbench.workloads.classifier import Classifier
from istbench.workloads.image_data.build import DecodedSummary, ListedSummary, open_decoded, open_listed
from istbench.workloads.image_data.decode import BrokenImage, cropped, read_file
from istbench.workloads.prepared import Labelled, in_order, open_summary

_TEST_PIXELS, _LEAST_BATCH = 2**20, 8  # pixels of a test batch, and its fewest images
_MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255  # of ImageNet's pixels, as for torchvision's models
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32) * 255


class Images(ABC):
    """Labelled images of both splits; `test` is None if it stays closed."""

    def __init__(self, train: Labelled, test: Labelled | None) -> None:
        self.train, self.test = train, test

    @abstractmethod
    def pixels(self, split: Labelled, chosen: np.ndarray, generator: torch.Generator | None) -> Tensor:
        """Images `chosen` (int64 [b]) of `split`, augmented with `generator` if given: float32 [b, 3, h, w]."""


class DecodedImages(Images):
    """Images of up to 64 pixels, mapped from a prepared directory. All processes of a machine share the memory.

    Training pads them before a random crop by an eighth of the side, 4 pixels for 32, and mirrors half of them.

    Raises:
        UserError: if the directory is missing or damaged.
    """

    def __init__(self, directory: Path, *, with_test: bool) -> None:
        summary = open_summary(directory, DecodedSummary)
        test = open_decoded(directory, summary, "test") if with_test else None
        super().__init__(open_decoded(directory, summary, "train"), test)
        self._mean = np.array(summary.mean, np.float32)
        self._deviation = np.array(summary.deviation, np.float32)
        self._padding = summary.resolution // 8

    def pixels(self, split: Labelled, chosen: np.ndarray, generator: torch.Generator | None) -> Tensor:
        images = split.samples[chosen]
        if generator is not None:
            images = cropped_and_mirrored(images, self._padding, generator)
        return normalised(images, self._mean, self._deviation)


class FileImages(Images):
    """Images decoded from their files for each batch, in as many threads as torch uses.

    The shorter side is scaled to 8/7 of the resolution. Training uses a random square of the image and mirrors
    half of them, tests use the middle.

    Raises:
        UserError: if the prepared directory is missing or damaged.
    """

    def __init__(self, directory: Path, resolution: int, *, with_test: bool) -> None:
        summary = open_summary(directory, ListedSummary)
        test = open_listed(directory, summary, "test") if with_test else None
        super().__init__(open_listed(directory, summary, "train"), test)
        self._resolution = resolution

    def pixels(self, split: Labelled, chosen: np.ndarray, generator: torch.Generator | None) -> Tensor:
        count, side = len(chosen), self._resolution * 8 // 7
        places, mirrored = torch.full((count, 2), 0.5), np.zeros(count, bool)
        if generator is not None:
            places = torch.rand(count, 2, generator=generator)
            mirrored = (torch.rand(count, generator=generator) < 0.5).numpy()

        def read(item: tuple[int, tuple[float, float]]) -> np.ndarray:
            path = split.samples[item[0]]
            try:
                return cropped(read_file(path), self._resolution, side, item[1])
            except BrokenImage as why:  # it was not broken during the scan
                raise UserError(
                    f"{printable(str(path))} changed during the run: {why}; run the command again"
                ) from None

        # Read for each batch: a node sets its threads after `open`, and evaluates with another number of threads.
        threads = torch.get_num_threads()
        items = zip(chosen.tolist(), places.tolist(), strict=True)
        images = np.stack(list(in_order(threads, read, items, ahead=4)))
        images[mirrored] = images[mirrored, :, :, ::-1]
        return normalised(images, _MEAN, _DEVIATION)


class Noise(Images):
    """Random pixels (float32) and classes in memory, for measurements of throughput; a little noise to test on."""

    def __init__(self, *, train: int, test: int, resolution: int, classes: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(count: int) -> Labelled:
            images = torch.randn(count, 3, resolution, resolution, generator=generator)
            return Labelled(images, torch.randint(classes, (count,), generator=generator).numpy())

        super().__init__(draw(train), draw(test))

    def pixels(self, split: Labelled, chosen: np.ndarray, generator: torch.Generator | None) -> Tensor:
        images: Tensor = split.samples[torch.from_numpy(chosen)]
        return images


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


class ImageClassifier(Classifier):
    """An image classifier. Subclasses find the images, build the network, and set `_images` in `open`.

    pixels: height and width of the network's input.
    """

    pixels: int
    batches_ahead: ClassVar[int] = 2

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._images: Images | None = None

    @property
    def train_size(self) -> int:
        return len(opened(self._images).train)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Images float32 [b, 3, h, w], augmented with `generator`, and classes int64 [b]."""
        return self._batch(opened(self._images).train, indices.numpy(), generator)

    def plain_batch(self, indices: Tensor) -> Batch:
        return self._batch(opened(self._images).train, indices.numpy())

    def train_classes(self) -> Tensor:
        return torch.from_numpy(opened(self._images).train.labels)

    def test_batches(self) -> Iterator[Batch]:
        """The test images in order, without augmentation."""
        test = opened(opened(self._images).test)
        for chosen in torch.arange(len(test)).split(max(_LEAST_BATCH, _TEST_PIXELS // self.pixels**2)):
            yield self._batch(test, chosen.numpy())

    def _batch(self, split: Labelled, chosen: np.ndarray, generator: torch.Generator | None = None) -> Batch:
        return opened(self._images).pixels(split, chosen, generator), torch.from_numpy(split.labels[chosen])

    def meta_batch(self, samples: int) -> Batch:
        return torch.empty(samples, 3, self.pixels, self.pixels), torch.empty(samples, dtype=torch.int64)
