"""One image file as pixels, decoded and converted to RGB as torchvision's image folders do."""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from istbench.errors import printable
from istbench.workloads.prepared import require_regular

MOST_PIXELS = 2**28
_NARROWEST = 100
_LARGEST_FILE = 2**30
_FORMATS = ("JPEG", "PNG")  # whatever the suffix says: some of ImageNet's .JPEG are PNG


class Pixels(NamedTuple):
    """A decoded image, uint8 [3, h, w]; whether it was of another mode than RGB, and of another size."""

    image: np.ndarray
    converted: bool
    resized: bool


class BrokenImage(Exception):  # noqa: N818  (it says what is wrong with a file, and is always caught)
    """An image that cannot be decoded, and why."""


def read_file(path: Path) -> bytes:
    """The content of image file `path`.

    Raises:
        UserError: where it is no regular file.
        BrokenImage: where it is unreadable, or far too large.
    """
    try:
        # A FIFO without a writer must not hang the open.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            require_regular(path, found, "an image")
            if found.st_size > _LARGEST_FILE:
                raise BrokenImage(f"{found.st_size:,} bytes are too many for an image")
            return file.read()
    except OSError as error:
        raise BrokenImage(error.strerror or str(error)) from None


def scaled(content: bytes, resolution: int) -> Pixels:
    """The image in `content`, its shorter side scaled to `resolution`, and cut to a square around its middle.

    Raises:
        BrokenImage: saying why it cannot be decoded.
    """
    with _decoded(content, resolution) as (image, size):
        converted, resized = image.mode != "RGB", size != (resolution, resolution)
        rgb = _shorter_side(image.convert("RGB"), resolution)
        left, top = round((rgb.width - resolution) / 2), round((rgb.height - resolution) / 2)
        return Pixels(_pixels(rgb, left, top, resolution), converted, resized)


def cropped(content: bytes, resolution: int, side: int, place: tuple[float, float]) -> np.ndarray:
    """A square of `resolution` pixels, uint8 [3, resolution, resolution], of the image scaled to a shorter `side`.

    `place` says where the square lies in the room there is, from 0 to 1, across and down.

    Raises:
        BrokenImage: saying why it cannot be decoded.
    """
    with _decoded(content, side) as (image, _):
        rgb = _shorter_side(image.convert("RGB"), side)
        left, top = (round((room - resolution) * at) for room, at in zip(rgb.size, place, strict=True))
        return _pixels(rgb, left, top, resolution)


def whole(content: bytes) -> Pixels:
    """The image in `content` at its own size, fully decoded: what a scan finds broken is never met in training.

    Raises:
        BrokenImage: saying why it cannot be decoded.
    """
    with _decoded(content, None) as (image, _):
        return Pixels(np.empty((3, 0, 0), np.uint8), image.mode != "RGB", False)


@contextmanager
def _decoded(content: bytes, side: int | None) -> Iterator[tuple[Image.Image, tuple[int, int]]]:
    """The decoded image and its own width and height; a JPEG may be at a fraction where `side` pixels do."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise BrokenImage(f"{image.width} x {image.height} pixels are too many")
                if max(image.size) > _NARROWEST * min(image.size):  # scaled to a square's side, it fills the memory
                    raise BrokenImage(f"{image.width} x {image.height} pixels are too narrow")
                size = image.size
                if side is not None:
                    image.draft(None, (side, side))  # None keeps the mode
                image.load()
                yield image, size
    except BrokenImage:
        raise
    except Image.UnidentifiedImageError:
        raise BrokenImage("neither JPEG nor PNG") from None
    except (Exception, Image.DecompressionBombError) as error:  # decoders raise whatever they like
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BrokenImage(printable(reason)) from None


def _shorter_side(image: Image.Image, side: int) -> Image.Image:
    """`image` scaled to a shorter side of `side`, as torchvision's Resize does."""
    width, height = image.size
    if min(width, height) == side:
        return image
    if width <= height:
        size = (side, max(side, int(side * height / width)))
    else:
        size = (max(side, int(side * width / height)), side)
    return image.resize(size, Image.Resampling.BILINEAR)


def _pixels(rgb: Image.Image, left: int, top: int, resolution: int) -> np.ndarray:
    square = rgb.crop((left, top, left + resolution, top + resolution))
    return np.ascontiguousarray(np.asarray(square, np.uint8).transpose(2, 0, 1))
