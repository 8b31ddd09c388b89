"""Decode image files to upright RGB pixels. A file that cannot be decoded raises `BrokenImage`."""

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from istbench.base.errors import printable
from istbench.workloads.prepared import require_regular

MOST_PIXELS = 2**28
_NARROWEST = 100
_LARGEST_FILE = 2**30
_FORMATS = ("JPEG", "PNG")  # of any suffix: some of ImageNet's .JPEG files are PNG
_OF_16_BITS = ((np.arange(2**16) + 128) // 257).astype(np.uint8)  # 257 k becomes k, others the nearest level


class Pixels(NamedTuple):
    """A decoded image, uint8 [3, h, w]; whether its mode was not RGB; whether its size was another."""

    image: np.ndarray
    converted: bool
    resized: bool


class BrokenImage(Exception):  # noqa: N818  (it names the problem of a file, and is always caught)
    """An image that cannot be decoded. The message is the reason."""


def read_file(path: Path) -> bytes:
    """The content of image file `path`.

    Raises:
        UserError: if it is not a regular file.
        BrokenImage: if it is unreadable, or far too large.
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
    """Scale the shorter side of the image in `content` to `resolution`, and cut the square in the middle."""
    with _decoded(content, resolution) as (image, converted, size):
        rgb = _shorter_side(image, resolution)
        left, top = round((rgb.width - resolution) / 2), round((rgb.height - resolution) / 2)
        return Pixels(_pixels(rgb, left, top, resolution), converted, size != (resolution, resolution))


def cropped(content: bytes, resolution: int, side: int, place: tuple[float, float]) -> np.ndarray:
    """Scale the image to a shorter `side` and cut a square, uint8 [3, resolution, resolution].

    `place` is the position of the square, from 0 to 1, across and down.
    """
    with _decoded(content, side) as (image, _, _):
        rgb = _shorter_side(image, side)
        left, top = (round((room - resolution) * at) for room, at in zip(rgb.size, place, strict=True))
        return _pixels(rgb, left, top, resolution)


def whole(content: bytes) -> Pixels:
    """Decode the image in `content` fully, as a check before training; the pixels are dropped."""
    with _decoded(content, None) as (_, converted, _):
        return Pixels(np.empty((3, 0, 0), np.uint8), converted, False)


@contextmanager
def _decoded(content: bytes, side: int | None) -> Iterator[tuple[Image.Image, bool, tuple[int, int]]]:
    """The image in RGB, whether its mode was another, and its size in the file.

    A JPEG may be decoded smaller, down to `side` pixels.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise BrokenImage(f"{image.width} x {image.height} pixels are too many")
                if max(image.size) > _NARROWEST * min(image.size):  # scaled to `side`, it would fill the memory
                    raise BrokenImage(f"{image.width} x {image.height} pixels are too narrow")
                size = image.size
                if side is not None:
                    image.draft(None, (side, side))  # None keeps the mode
                image.load()
                with contextlib.suppress(Exception):  # damaged EXIF data turns no image
                    ImageOps.exif_transpose(image, in_place=True)
                yield _rgb(image), image.mode != "RGB", size
    except BrokenImage:
        raise
    except Image.UnidentifiedImageError:
        raise BrokenImage("neither JPEG nor PNG") from None
    except (Exception, Image.DecompressionBombError) as error:  # decoders raise errors of any type
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BrokenImage(printable(reason)) from None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey, of which Pillow makes 255 from 256 on
        return Image.fromarray(_OF_16_BITS[np.asarray(image)]).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _shorter_side(image: Image.Image, side: int) -> Image.Image:
    """`image` scaled to a shorter side of `side`, like torchvision's Resize."""
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
