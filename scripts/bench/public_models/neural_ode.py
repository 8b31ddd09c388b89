"""A neural ordinary differential equation, of torchdiffeq."""

import torch
from of_points import data as data
from of_points import loss as loss
from torch import nn
from torchdiffeq import odeint_adjoint


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))

    def forward(self, _time, x):
        return self.net(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = Slope()

    def forward(self, x):
        return odeint_adjoint(self.slope, x, torch.tensor([0.0, 1.0]), method="rk4", options={"step_size": 0.5})[-1]


def model():
    return Net()
