"""Synthetic images that a small convolutional network can learn and a linear model cannot.

A class is a texture: waves of one of two lengths, in one of five directions. Their position, phase, colour and
contrast are random, and so is the background. The phase is uniform, so every pixel has the same mean in every
class, and an image is as likely as its negative. The loss of linear models is convex, so the best linear model has
zero weights and guesses. A mirrored image has the same class.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from istbench.workloads.base import ShowProgress
from istbench.workloads.prepared import Chunk

SIDE = 32
_ANGLES = (0.0, 22.5, 45.0, 67.5, 90.0)  # degrees; a mirrored wave has the angle 180 minus its own
_LENGTHS = (3.5, 6.5)  # pixels
CLASSES = tuple(f"waves {length:g}px {angle:g}deg" for angle in _ANGLES for length in _LENGTHS)

_TEST_SHARE = 0.2
_CHUNK = 500  # images drawn at a time; the images depend on it
_ANGLE_JITTER = 4.0  # degrees, standard deviation
_CONTRAST = (14.0, 44.0)
_NOISE = 24.0  # standard deviation per pixel
_GROUND = 30.0  # standard deviation of background colours
_RADIUS = 7.0


@dataclass(frozen=True, kw_only=True)
class Textures:
    """The settings of a set of synthetic images: `train` training images, and a fifth as many test images."""

    train: int
    seed: int

    @property
    def test(self) -> int:
        """Number of test images."""
        return max(len(CLASSES), round(self.train * _TEST_SHARE))

    @cached_property
    def labels(self) -> np.ndarray:
        """Class of every image, int64 [train + test], in random order, with equal numbers of each class."""
        order = np.random.default_rng([self.seed, 0])
        return np.concatenate([order.permutation(count) % len(CLASSES) for count in (self.train, self.test)])

    def chunks(self, progress: ShowProgress) -> Iterator[Chunk]:
        """Yield all images in order, uint8 [b, 3, 32, 32]."""
        is_test = np.arange(len(self.labels)) >= self.train
        for first in range(0, len(self.labels), _CHUNK):
            labels = self.labels[first : first + _CHUNK]
            images = draw(labels, np.random.default_rng([self.seed, 1, first]))
            yield images, labels, is_test[first : first + _CHUNK]
            progress("synthetic images", first + len(labels), len(self.labels))


def draw(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """One image for each of `labels`: uint8 [b, 3, 32, 32]."""
    count = len(labels)

    def drawn(low: float, high: float) -> np.ndarray:
        return random.uniform(low, high, (count, 1, 1)).astype(np.float32)

    degrees = np.array(_ANGLES)[labels // len(_LENGTHS)] + random.normal(0, _ANGLE_JITTER, count)
    degrees = np.where(random.random(count) < 0.5, degrees, 180 - degrees)
    angle = np.radians(degrees).astype(np.float32)[:, None, None]
    length = np.array(_LENGTHS, np.float32)[labels % len(_LENGTHS)][:, None, None]
    down, across = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    along = across * np.cos(angle) + down * np.sin(angle)
    waves = np.cos(2 * np.pi * along / length + drawn(0, 2 * np.pi))
    middle_down, middle_across = drawn(10, SIDE - 10), drawn(10, SIDE - 10)
    distance = (down - middle_down) ** 2 + (across - middle_across) ** 2
    texture = drawn(*_CONTRAST) * waves * np.exp(-distance / (2 * _RADIUS**2))
    colour = random.normal(0, 1, (count, 3, 1, 1)).astype(np.float32)
    colour /= np.sqrt(np.square(colour).mean(1, keepdims=True))
    image = 127.5 + texture[:, None] * colour + _ground(count, random)
    image += _NOISE * random.standard_normal((count, 3, SIDE, SIDE), np.float32)
    pixels: np.ndarray = np.clip(image, 0, 255).round().astype(np.uint8)
    return pixels


def _ground(count: int, random: np.random.Generator) -> np.ndarray:
    """A background whose colour changes linearly between random colours: float32 [b, 3, 32, 32]."""
    corners = (_GROUND * random.standard_normal((3, count, 3, 1, 1))).astype(np.float32)
    slope = np.linspace(-1, 1, SIDE, dtype=np.float32)
    return corners[0] + corners[1] * slope[:, None] + corners[2] * slope
