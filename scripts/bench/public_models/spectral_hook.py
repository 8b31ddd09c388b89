"""Spectral normalisation by torch's older hook."""

from of_points import data as data
from of_points import loss as loss
from torch import nn
from torch.nn.utils import spectral_norm


def model():
    return nn.Sequential(spectral_norm(nn.Linear(6, 24)), nn.LeakyReLU(), spectral_norm(nn.Linear(24, 6)))
