"""Points and their sines, and the squared error: the data and the loss of task files beside this one."""

import torch
from torch.nn import functional as F


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    points = [torch.rand(8, 6, generator=draws) for _ in range(4)]
    return [(some, some.sin()) for some in points]


def loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])
