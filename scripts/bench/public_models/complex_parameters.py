"""A layer with complex weights."""

import torch
from of_points import data as data
from of_points import loss as loss
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.turn = nn.Parameter(torch.randn(12, 6, dtype=torch.complex64) * 0.1)

    def forward(self, x):
        return (self.first(x).to(torch.complex64) @ self.turn).abs()


def model():
    return Net()
