"""A pre-LN transformer that predicts the next character of Python's own help topics; for scaled_sums.py."""

from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

batch_size, unit = 12, "nats a character"
LENGTH, WIDTH, LAYERS, HEADS = 64, 128, 4, 4
TEXT = torch.tensor(list("".join(topics.values()).encode("ascii", "replace")))


class model(nn.Module):  # noqa: N801
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.output = nn.Linear(WIDTH, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) + self.places.weight
        scores: Tensor = self.output(self.blocks(x, self.mask, is_causal=True))
        return scores


def data(train: bool) -> TensorDataset:
    windows = TEXT.unfold(0, LENGTH + 1, LENGTH)
    split = len(windows) * 9 // 10
    return TensorDataset(windows[:split] if train else windows[split:])


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())
