"""A small CNN without normalisation, on stripes of ten directions in noise; for scaled_sums.py."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

batch_size = 32
PIXELS, CLASSES, CHANNELS = 16, 10, (32, 64, 64)


def network(norm):
    """The CNN; `norm` makes the layer behind each convolution from its channels."""
    layers, before = [], 3
    for channels in CHANNELS:
        layers += [nn.Conv2d(before, channels, 3, padding=1), norm(channels), nn.ReLU(), nn.MaxPool2d(2)]
        before = channels
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * 4, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def model():
    return network(lambda channels: nn.Identity())


def data(train):
    draw = torch.Generator().manual_seed(int(train))
    count = 8_000 if train else 2_000
    classes = torch.randint(CLASSES, (count,), generator=draw)
    angles = (classes * math.pi / CLASSES)[:, None, None]
    rows, columns = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")
    phases = 2 * math.pi * torch.rand(count, 1, 1, generator=draw)
    stripes = (rows * angles.cos() + columns * angles.sin() + phases).sin()[:, None]
    colours = torch.rand(count, 3, 1, 1, generator=draw)
    return TensorDataset(stripes * colours + torch.randn(count, 3, PIXELS, PIXELS, generator=draw), classes)


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])
