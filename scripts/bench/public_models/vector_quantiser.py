"""A vector quantiser whose codebook is a moving average, of vector-quantize-pytorch."""

import torch
from torch import nn
from torch.nn import functional as F
from vector_quantize_pytorch import VectorQuantize


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 6)
        self.codes = VectorQuantize(dim=8, codebook_size=16, decay=0.8, threshold_ema_dead_code=0)

    def forward(self, x):
        chosen, _, commitment = self.codes(self.first(x).unsqueeze(1))
        return self.last(chosen.squeeze(1)) + commitment.sum()


def model():
    return Net()


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    points = [torch.rand(8, 6, generator=draws) for _ in range(4)]
    return [(some, some.sin()) for some in points]


def loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])
