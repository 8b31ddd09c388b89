"""A network that the user compiled with torch.compile."""

import torch
from torch import nn
from torch.nn import functional as F


def model():
    net = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 6))
    return torch.compile(net, backend="aot_eager")


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    points = [torch.rand(8, 6, generator=draws) for _ in range(4)]
    return [(some, some.sin()) for some in points]


def loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])
