"""A small CNN without normalisation, on stripes of ten directions in noise; for scaled_sums.py."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

batch_size = 32
PIXELS, CLASSES, CHANNELS = 16, 10, (32, 64, 64)


def network(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """The CNN; `norm` makes the layer behind each convolution from its channels."""
    layers: list[nn.Module] = []
    before = 3
    for channels in CHANNELS:
        layers += [nn.Conv2d(before, channels, 3, padding=1), norm(channels), nn.ReLU(), nn.MaxPool2d(2)]
        before = channels
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * 4, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def model() -> nn.Module:
    return network(lambda channels: nn.Identity())


def data(train: bool) -> TensorDataset:
    draw = torch.Generator().manual_seed(int(train))
    count = 8_000 if train else 2_000
    classes = torch.randint(CLASSES, (count,), generator=draw)
    angles = (classes * math.pi / CLASSES)[:, None, None]
    rows, columns = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")
    phases = 2 * math.pi * torch.rand(count, 1, 1, generator=draw)
    stripes = (rows * angles.cos() + columns * angles.sin() + phases).sin()[:, None]
    colours = torch.rand(count, 3, 1, 1, generator=draw)
    noise = torch.randn(count, 3, PIXELS, PIXELS, generator=draw) / 2
    return TensorDataset(stripes * colours + noise, classes)


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])
