"""The base class of image classifiers: batches from any source."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from istbench.workloads.base import Batch, DataSource, opened
from istbench.workloads.classifier import Classifier
from istbench.workloads.image_data.sources import Images


class ImageClassifier(Classifier):
    """An image classifier. Subclasses find the images and build the network.

    pixels: height and width of the network's input.
    """

    pixels: int
    batches_ahead: ClassVar[int] = 2

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._images: Images | None = None

    @abstractmethod
    def images(self, source: DataSource) -> Images:
        """Open the images of `source`, which `prepare` returned; cheap."""

    def open(self, source: DataSource) -> None:
        self._images = self.images(source)

    @property
    def train_size(self) -> int:
        return len(opened(self._images).labels)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Images float32 [b, 3, h, w], augmented with `generator`, and classes int64 [b]."""
        return opened(self._images).train_batch(indices, generator)

    def plain_batch(self, indices: Tensor) -> Batch:
        return opened(self._images).plain_batch(indices)

    def train_classes(self) -> Tensor:
        return opened(self._images).labels

    def test_batches(self) -> Iterator[Batch]:
        return opened(self._images).test_batches()

    def meta_batch(self, samples: int) -> Batch:
        return torch.empty(samples, 3, self.pixels, self.pixels), torch.empty(samples, dtype=torch.int64)
