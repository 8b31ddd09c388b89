"""Image classifiers at ImageNet's sizes, on image folders or on noise."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import nn

from istbench.base.errors import UserError
from istbench.base.options.numbers import Classes, Count, Resolution, Units
from istbench.base.options.options import option
from istbench.workloads.base import WIDEN, WIDENED, DataSource, ShowProgress, check_widened, divided
from istbench.workloads.image_data.build import LARGEST_DECODED, open_classes, prepare_decoded, prepare_listed
from istbench.workloads.image_data.folders import find_image_files
from istbench.workloads.images import DecodedImages, FileImages, ImageClassifier, Noise
from istbench.workloads.models.vgg import vgg12, vgg_groups
from istbench.workloads.neuron_groups.groups import NeuronGroup

_SEED = 1
_TEST_IMAGES = 16
_PIXELS = 224
_OWN_PIXELS = {"inception_v3": 299}
_LEAST_PIXELS = {"inception_v3": 75, "alexnet": 63}
_LEAST = 32  # for all other models


@dataclass(frozen=True, kw_only=True)
class ImageNetOptions:
    """Options of the imagenet workload.

    Raises:
        UserError: for a `resolution` that is too low for the model, a `widen` or `widened` of another model than
            vgg12, or `widened` without `widen`.
    """

    model: Literal[
        "alexnet",
        "densenet121",
        "inception_v3",
        "mobilenet_v2",
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "resnet152",
        "vgg11",
        "vgg12",
        "vgg16",
        "vgg16_bn",
        "vgg19",
        "vgg19_bn",
    ] = option("resnet50", "vgg12, or torchvision's network of that name")
    width: Units = option(64, "channels of vgg12's first convolution; other models ignore it")
    resolution: Resolution = option(0, "height and width of an image; 0 for 224, or 299 with inception_v3")
    classes: Classes = option(1000, "classes of noise; image folders define their own")
    samples: Count = option(128, "number of training images of noise, in memory")
    widen: Units = option(1, f"{WIDEN}, in vgg12")
    widened: Literal["late", "all"] = option("late", WIDENED)

    def __post_init__(self) -> None:
        least = _LEAST_PIXELS.get(self.model, _LEAST)
        if self.pixels < least:
            raise UserError(f"{self.model} needs a resolution of at least {least}, not {self.resolution}")
        if self.model != "vgg12":
            for name, used in (("widen", self.widen > 1), ("widened", self.widened != "late")):
                if used:
                    raise UserError(f"{name} is an option of vgg12, not of {self.model}; leave it out")
        check_widened(self.widen, self.widened)

    @property
    def pixels(self) -> int:
        """Height and width of an image."""
        return self.resolution or _OWN_PIXELS.get(self.model, _PIXELS)


class ImageNet(ImageClassifier):
    """Classify the images of image folders with VGG12 or torchvision's networks; without data, noise.

    Noise is for measurements of throughput. Images of up to 64 pixels are decoded once, larger ones for every
    batch. `prepare` and `open` set the number of classes; before, it is the option's. Inception v3 has no auxiliary
    classifier here.
    """

    name = "imagenet"
    Options = ImageNetOptions
    batch_size = 16
    epochs = 1
    top: ClassVar[tuple[int, ...]] = (5, 10)

    options: ImageNetOptions

    def __init__(self, options: ImageNetOptions | None = None) -> None:
        super().__init__(options)
        self._classes = self.options.classes
        self._noise = True
        self.width = "width" if self.options.model == "vgg12" else ""
        self.pixels = self.options.pixels

    # Data.

    def prepare(self, data: Path | None, cache: Path, progress: ShowProgress) -> DataSource:
        """The image folders in `data`, with every image decoded once; without data, noise, drawn by `open`.

        Raises:
            UserError: for a directory in the wrong layout, broken images (naming them), or a `cache` that is not
                writable.
        """
        options = self.options
        if data is None:
            return DataSource.computed(
                f"{_SEED}/{options.pixels}/{options.classes}/{options.samples}".encode(),
                train=options.samples,
                test=_TEST_IMAGES,
                note="synthetic data: noise in place of images, for throughput only",
                learnable=False,
            )
        files, folder = find_image_files(data), cache / "imagenet"
        if options.pixels <= LARGEST_DECODED:
            source = prepare_decoded(files, options.pixels, folder, progress)
        else:
            source = prepare_listed(files, folder, progress)
        self._learn_classes(source)
        return source

    def computed_bytes(self) -> int:
        return (self.options.samples + _TEST_IMAGES) * 3 * self.options.pixels**2 * 4 if self._noise else 0

    def open(self, source: DataSource) -> None:
        """Map the prepared images, or decode them for every batch; or draw noise."""
        options, path = self.options, Path(source.path)
        if not source.path:
            self._images = Noise(
                train=options.samples,
                test=_TEST_IMAGES,
                resolution=options.pixels,
                classes=options.classes,
                seed=_SEED,
            )
            return
        self._learn_classes(source)
        if options.pixels <= LARGEST_DECODED:
            self._images = DecodedImages(path, with_test=not self.without_test)
        else:
            self._images = FileImages(path, options.pixels, with_test=not self.without_test)

    def _learn_classes(self, source: DataSource) -> None:
        self._classes, self._noise = len(open_classes(Path(source.path))), False

    # Model.

    def build_model(self) -> nn.Module:
        """The network, without torchvision's own initial values: see `initial_rows`."""
        options = self.options
        if options.model == "vgg12":
            return vgg12(options.width, self._classes, options.pixels, widen=options.widen, widened=options.widened)
        from torchvision import models

        build: Callable[..., nn.Module] = models.get_model_builder(options.model)
        said: dict[str, Any] = {}
        if options.model.startswith(("vgg", "inception")):
            said["init_weights"] = False
        if options.model == "inception_v3":
            said["aux_logits"] = False
        return build(num_classes=self._classes, **said)

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """All hidden layers of VGG12; none for torchvision's networks, which have no subnets here."""
        return vgg_groups(model) if self.options.model == "vgg12" else []

    def narrowed(self, times: int) -> dict[str, Any]:
        if self.options.model != "vgg12":
            return super().narrowed(times)
        return {"width": divided(self.options.width, times)}

    def method_defaults(self, method: str) -> dict[str, Any]:
        """SGD with momentum 0.9; learning rate 0.05 for VGG12, else 0.001, which is stable on noise.

        `deal` is of `ist`: the last hidden layer alone (docs/images.md, Which layers are dealt).
        """
        if self.options.model == "vgg12":
            return {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "local_steps": 40, "deal": ("hidden11",)}
        return {"lr": 0.001, "momentum": 0.9}
