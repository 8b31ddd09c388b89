"""Image classifiers at ImageNet's sizes on synthetic images: how fast they train, not what they learn."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from istbench.config.numbers import Classes, Count
from istbench.errors import UserError
from istbench.subnets.groups import NeuronGroup
from istbench.workloads.base import Batch, DataSource, Progress, Workload, opened
from istbench.workloads.metrics import classification_metrics

_SEED = 1
_TEST_IMAGES = 16
_TEST_BATCH = 8
_PIXELS = {"vgg19": 224, "resnet50": 224, "inception_v3": 299}


@dataclass(frozen=True, kw_only=True)
class ImageNetOptions:
    """Options of the imagenet workload."""

    model: Literal["vgg19", "resnet50", "inception_v3"] = field(
        default="resnet50", metadata={"help": "torchvision's network of that name"}
    )
    classes: Classes = field(default=1000, metadata={"help": "classes to tell apart"})
    samples: Count = field(default=128, metadata={"help": "synthetic training images, kept in memory"})


class ImageNet(Workload):
    """torchvision's VGG-19, ResNet-50 or Inception v3 on synthetic images: for throughput, nothing is learnt.

    Inception v3 goes without its auxiliary classifier.
    """

    name = "imagenet"
    Options = ImageNetOptions
    metric = "accuracy"
    targets = ()
    batch_size = 16
    epochs = 1

    options: ImageNetOptions

    def __init__(self, options: ImageNetOptions | None = None) -> None:
        super().__init__(options)
        self._train: Batch | None = None
        self._test: Batch | None = None

    def prepare(self, data: Path | None, cache: Path, progress: Progress) -> DataSource:
        """Nothing is written: the images are drawn when they are opened.

        Raises:
            UserError: when a data directory is given.
        """
        if data is not None:
            raise UserError(f"imagenet trains on synthetic images only: leave out --data {data}")
        said = f"{_SEED}/{_PIXELS[self.options.model]}/{self.options.classes}/{self.options.samples}"
        return DataSource.computed(
            said.encode(),
            train=self.options.samples,
            test=_TEST_IMAGES,
            note="synthetic data: noise in place of images, for throughput only",
        )

    def computed_bytes(self) -> int:
        """Bytes of the images, float32."""
        return (self.options.samples + _TEST_IMAGES) * 3 * _PIXELS[self.options.model] ** 2 * 4

    def open(self, source: DataSource) -> None:
        """Draw the images."""
        generator = torch.Generator().manual_seed(_SEED)
        self._train = self._draw(self.options.samples, generator)
        self._test = self._draw(_TEST_IMAGES, generator)

    def _draw(self, count: int, generator: torch.Generator) -> Batch:
        pixels = _PIXELS[self.options.model]
        images = torch.randn(count, 3, pixels, pixels, generator=generator)
        return images, torch.randint(self.options.classes, (count,), generator=generator)

    @property
    def train_size(self) -> int:
        """Number of training images."""
        return self.options.samples

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Images float32 [b, 3, pixels, pixels] and their classes int64 [b]; nothing is augmented."""
        images, classes = opened(self._train)
        return images[indices], classes[indices]

    def test_batches(self) -> Iterator[Batch]:
        """A few images, so that an evaluation takes little time."""
        images, classes = opened(self._test)
        for first in range(0, len(images), _TEST_BATCH):
            yield images[first : first + _TEST_BATCH], classes[first : first + _TEST_BATCH]

    def build_model(self) -> nn.Module:
        """torchvision's network. Its own initial values are not drawn: see `initial_rows`."""
        from torchvision import models

        builders: dict[str, Callable[[], nn.Module]] = {
            "vgg19": lambda: models.vgg19(num_classes=self.options.classes, init_weights=False),
            "resnet50": lambda: models.resnet50(num_classes=self.options.classes),
            "inception_v3": lambda: models.inception_v3(
                num_classes=self.options.classes, init_weights=False, aux_logits=False
            ),
        }
        return builders[self.options.model]()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross entropy of the softmax."""
        images, classes = batch
        return F.cross_entropy(model(images), classes)

    def evaluate(self, model: nn.Module, batches: Iterator[Batch]) -> dict[str, float]:
        """`accuracy` and `loss` on noise: chance."""
        return classification_metrics(model, batches)

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """None: these networks are not cut into subnets."""
        return []

    def method_defaults(self, method: str) -> dict[str, Any]:
        """A learning rate that stays finite on noise."""
        return {"lr": 0.001, "momentum": 0.9}
