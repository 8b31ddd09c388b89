"""A vector quantiser whose codebook is a moving average, of vector-quantize-pytorch."""

from of_points import data as data
from of_points import loss as loss
from torch import nn
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
