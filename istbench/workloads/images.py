"""What image classifiers share: batches from wherever the images are, cross entropy, accuracy."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from istbench.workloads.base import Batch, DataSource, Workload
from istbench.workloads.image_data.sources import Images
from istbench.workloads.metrics import classification_metrics


class ImageClassifier(Workload):
    """Which of some classes an image is of. Subclasses find the images, and build the network.

    top: for which k the share of images is reported whose class is among the k largest outputs, as `topK`; only
        those of less than all classes.
    pixels: height and width of an image, as the network gets it.
    """

    top: ClassVar[tuple[int, ...]] = ()
    pixels: int
    batches_ahead: ClassVar[int] = 2
    metrics_are_means = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._images: Images | None = None

    @abstractmethod
    def images(self, source: DataSource) -> Images:
        """The images of `source`, which `prepare` gave; cheap."""

    def open(self, source: DataSource) -> None:
        """Map the prepared images, or draw noise.

        Raises:
            UserError: when what was prepared is missing or damaged.
        """
        self._images = self.images(source)

    @property
    def _opened(self) -> Images:
        if self._images is None:
            raise RuntimeError("open the workload before asking for its data")
        return self._images

    @property
    def train_size(self) -> int:
        """Number of training images."""
        return len(self._opened.labels)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Images float32 [b, 3, h, w], augmented as `generator` says, and classes int64 [b]."""
        return self._opened.train_batch(indices, generator)

    def train_classes(self) -> Tensor:
        """The class of every training image."""
        return self._opened.labels

    def test_batches(self) -> Iterator[Batch]:
        """The test images in order, not augmented."""
        return self._opened.test_batches()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross entropy of the softmax."""
        images, classes = batch
        return F.cross_entropy(model(images), classes)

    def meta_batch(self, samples: int) -> Batch:
        """Images and classes without values."""
        return torch.empty(samples, 3, self.pixels, self.pixels), torch.empty(samples, dtype=torch.int64)

    def evaluate(self, model: nn.Module, batches: Iterator[Batch]) -> dict[str, float]:
        """`accuracy`: the share of images whose class has the largest output; `topK`; `loss`: cross entropy."""
        return classification_metrics(model, batches, self.top)
