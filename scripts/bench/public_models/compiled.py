"""A network that the user compiled with torch.compile."""

import torch
from of_points import data as data
from of_points import loss as loss
from torch import nn


def model():
    net = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 6))
    return torch.compile(net, backend="aot_eager")
