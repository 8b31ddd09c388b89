"""An MLP of three hidden layers without normalisation, on classes of a random network; for scaled_sums.py."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

batch_size = 32
INPUTS, HIDDEN, CLASSES = 32, 256, 10


def model() -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(INPUTS, HIDDEN), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES))


def data(train: bool) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    first, last = torch.randn(INPUTS, 64, generator=draw), torch.randn(64, CLASSES, generator=draw)
    points = torch.randn(20_000, INPUTS, generator=draw)
    classes = ((points @ first).relu() @ last).argmax(1)
    return TensorDataset(*((points[:16_000], classes[:16_000]) if train else (points[16_000:], classes[16_000:])))


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])
