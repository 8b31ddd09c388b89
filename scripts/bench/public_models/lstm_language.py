"""A language model of an LSTM and a GRU, with the embedding as its output layer."""

from of_words import WORDS
from of_words import data as data
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.lstm = nn.LSTM(16, 16, num_layers=2, dropout=0.1, batch_first=True)
        self.gru = nn.GRU(16, 16, batch_first=True, bidirectional=False)
        self.output = nn.Linear(16, WORDS)
        self.output.weight = self.embed.weight

    def forward(self, words):
        return self.output(self.gru(self.lstm(self.embed(words))[0])[0])


def model():
    return Net()


def loss(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
