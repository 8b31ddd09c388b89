"""Noise in pictures, bright or dark: the data and the loss of task files beside this one."""

import torch
from torch.nn import functional as F

SIZE = 32


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    pictures = [torch.rand(4, 3, SIZE, SIZE, generator=draws) for _ in range(4)]
    return [(some, (some.mean((1, 2, 3)) > 0.5).long()) for some in pictures]


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])
