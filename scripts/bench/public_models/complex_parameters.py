"""A layer with complex weights."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.turn = nn.Parameter(torch.randn(12, 6, dtype=torch.complex64) * 0.1)

    def forward(self, x):
        return (self.first(x).to(torch.complex64) @ self.turn).abs()


def model():
    return Net()


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    points = [torch.rand(8, 6, generator=draws) for _ in range(4)]
    return [(some, some.sin()) for some in points]


def loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])
