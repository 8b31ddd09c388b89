"""A recommender like DLRM: tables with sparse gradients, products of features, and a click to predict."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(50, 8, mode="sum", sparse=True) for _ in range(3))
        self.user = nn.Embedding(50, 8, sparse=True)
        self.bottom, self.top = nn.Linear(4, 8), nn.Sequential(nn.Linear(18, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numbers, items, user):
        features = [self.bottom(numbers), self.user(user)]
        features += [table(one) for table, one in zip(self.tables, items.unbind(1), strict=True)]
        stacked = torch.stack(features, 1)
        first, second = torch.triu_indices(5, 5, 1).unbind()
        products = (stacked @ stacked.transpose(1, 2))[:, first, second]
        return self.top(torch.cat([features[0], products], 1)).squeeze(1)


def model():
    return Net()


def data(train):
    draws = torch.Generator().manual_seed(int(train))

    def batch():
        numbers, items = torch.rand(8, 4, generator=draws), torch.randint(50, (8, 3, 2), generator=draws)
        return {"numbers": numbers, "items": items, "user": torch.randint(50, (8,), generator=draws)}

    return [batch() for _ in range(4)]


def loss(model, batch):
    return F.binary_cross_entropy_with_logits(model(**batch), (batch["numbers"].mean(1) > 0.5).float())
