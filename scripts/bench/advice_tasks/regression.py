"""Noisy values of a fixed random network at 64 inputs, by a wide perceptron; mean squared error."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

batch_size, unit = 128, "squared error"


def model():
    return nn.Sequential(
        nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1),
    )  # fmt: skip


def data(train):
    random = torch.Generator().manual_seed(0)
    first, second = torch.randn(64, 32, generator=random) / 8, torch.randn(32, 1, generator=random) / 32**0.5
    random.manual_seed(1 if train else 2)
    count = 40_000 if train else 4_000
    inputs = torch.randn(count, 64, generator=random)
    values = torch.sin(inputs @ first) @ second
    return TensorDataset(inputs, values + 0.05 * torch.randn(count, 1, generator=random))


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])
