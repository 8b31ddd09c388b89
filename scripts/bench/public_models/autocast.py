"""A loss in mixed precision by torch.autocast."""

import torch
from of_points import data as data
from torch import nn
from torch.nn import functional as F


def model():
    return nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 6))


def loss(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.mse_loss(model(batch[0]).float(), batch[1])
