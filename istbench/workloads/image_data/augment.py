"""Augmentation of decoded images, a whole batch at once: a random crop of the padded image, a random mirroring."""

import numpy as np
import torch
from torch import Tensor


def cropped_and_mirrored(images: np.ndarray, padding: int, generator: torch.Generator) -> np.ndarray:
    """Each image padded with black, cut out anew at a random place, and mirrored half of the time.

    Args:
        images: uint8 [b, 3, s, s]; stays as it is.
        padding: pixels on every side.
        generator: what is random; the same gives the same.
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
    """Images uint8 [b, 3, h, w] as float32, every colour less `mean` and over `deviation` (float32 [3])."""
    scaled = images.astype(np.float32, order="C")
    scaled -= mean[:, None, None]
    scaled *= (1 / deviation)[:, None, None]
    return torch.from_numpy(scaled)
