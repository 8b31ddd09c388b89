"""Weight normalisation by torch's parametrizations, and an orthogonal layer."""

from of_points import data as data
from of_points import loss as loss
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, weight_norm


def model():
    return nn.Sequential(weight_norm(nn.Linear(6, 24)), nn.Tanh(), orthogonal(nn.Linear(24, 24)), nn.Linear(24, 6))
