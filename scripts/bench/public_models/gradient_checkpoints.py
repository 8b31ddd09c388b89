"""A residual network that computes its activations again in the backward pass."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 6)) for _ in range(3)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def model():
    return Net()


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    points = [torch.rand(8, 6, generator=draws) for _ in range(4)]
    return [(some, some.sin()) for some in points]


def loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])
