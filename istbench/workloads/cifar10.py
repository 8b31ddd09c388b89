"""CIFAR-10 with ResNet18 (IST, arXiv 1910.02120)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from istbench.base.errors import UserError, printable
from istbench.base.files import kind_at
from istbench.base.options.numbers import Count, Seed, Units
from istbench.base.options.options import option
from istbench.workloads.base import NARROW, WIDEN, WIDENED, DataSource, ShowProgress, check_widened
from istbench.workloads.image_data.build import open_classes, prepare_batches, prepare_decoded, prepare_textures
from istbench.workloads.image_data.cifar_batches import CLASSES, PUBLISHED, SIDE, find_batches
from istbench.workloads.image_data.folders import find_image_files, find_root
from istbench.workloads.image_data.synthetic import Textures
from istbench.workloads.images import DecodedImages, ImageClassifier
from istbench.workloads.models.resnet import cifar_resnet18, resnet_groups
from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.prepared import Sourced, named_errors

_SYNTHETIC_IMAGES = 10_000


@dataclass(frozen=True, kw_only=True)
class Cifar10Options:
    """Options of the cifar10 workload.

    Raises:
        UserError: for `widened` without `widen`.
    """

    width: Units = option(64, "channels of the first stage; 64 in the paper's ResNet18")
    images: Count = option(_SYNTHETIC_IMAGES, "synthetic training images; no effect on real ones")
    data_seed: Seed = option(0, "seed of the synthetic images; no effect on real ones")
    widen: Units = option(1, WIDEN)
    widened: Literal["late", "all"] = option("late", WIDENED)
    narrow: Units = option(1, NARROW)

    def __post_init__(self) -> None:
        check_widened(self.widen, self.widened)


class Cifar10(ImageClassifier, Sourced):
    """Classify images of 32 x 32 pixels into ten classes: ResNet18 in its CIFAR form, of any width.

    Data: CIFAR-10's own batches, any image folders, or synthetic textures. `prepare` and `open` set the number of
    classes (ten before) and the targets.
    """

    name = "cifar10"
    Options = Cifar10Options
    targets: tuple[float, ...] = (0.8, 0.85, 0.88, 0.9)
    batch_size = 128
    epochs = 30
    width = "width"
    pixels = SIDE
    published = PUBLISHED

    options: Cifar10Options

    def __init__(self, options: Cifar10Options | None = None) -> None:
        super().__init__(options)
        self._classes = len(CLASSES)

    # Data.

    def _prepared(self, data: Path | None, folder: Path, progress: ShowProgress) -> DataSource:
        if data is not None:
            return _prepare(data, folder, progress)
        return prepare_textures(Textures(train=self.options.images, seed=self.options.data_seed), folder, progress)

    def open(self, source: DataSource) -> None:
        self._learn(source)
        self._images = DecodedImages(Path(source.path), with_test=not self.without_test)

    def _learn(self, source: DataSource) -> None:
        classes = open_classes(Path(source.path))
        self._classes = len(classes)
        # The targets are for CIFAR-10's photographs. Reports on others use shares of the best run's metric.
        self.targets = type(self).targets if _official(classes, source.train, source.test) else ()

    # Model.

    def build_model(self) -> nn.Module:
        """ResNet18 with a 3x3 stem and without max-pool."""
        options = self.options
        return cifar_resnet18(
            options.width, self._classes, widen=options.widen, widened=options.widened, narrow=options.narrow
        )

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """The inner channels of every residual block."""
        return resnet_groups(model)

    def narrowed(self, times: int) -> dict[str, Any]:
        return {"narrow": self.options.narrow * times}

    def method_defaults(self, method: str) -> dict[str, Any]:
        """SGD with momentum 0.9, weight decay 5e-4 and learning rate 0.1; 20 local steps.

        `deal` is of `ist`: the last residual block alone (docs/images.md, Which layers are dealt).
        """
        return {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "local_steps": 20, "deal": ("block4_2",)}


def _prepare(data: Path, folder: Path, progress: ShowProgress) -> DataSource:
    """CIFAR-10's batches in `data`, or the image folders there."""
    with named_errors(str(data)):
        if (kind := kind_at(data)) != "directory":
            what = "not a directory; extract archives first" if kind else "no such directory"
            raise UserError(printable(f"{data}: {what}; {_EXPECTED}"))
        batches = find_batches(data)
        if batches is None:
            try:
                find_root(data)
            except UserError as error:
                raise UserError(f"{error}; or {_EXPECTED}") from None
    if batches is not None:
        return prepare_batches(batches, folder, progress)
    files = find_image_files(data)
    test = int(files.is_test.sum())
    official = _official(files.classes, len(files.is_test) - test, test)
    return prepare_decoded(files, SIDE, folder, progress, official=official)


def _official(classes: tuple[str, ...], train: int, test: int) -> bool:
    """Whether images may be CIFAR-10's, or a part of them: CINIC-10 has the same classes, and more images."""
    return classes == CLASSES and train <= 50_000 and test <= 10_000


_EXPECTED = "expected cifar-10-batches-py, cifar-10-batches-bin, or image folders train/CLASS and test/CLASS"
