"""Batches of random graphs, and the loss of their mean: the data and the loss of task files beside this one."""

import torch
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_mean_pool

samples = 4


def graph(draws):
    nodes = int(torch.randint(4, 8, (1,), generator=draws))
    edges = torch.randint(nodes, (2, 3 * nodes), generator=draws)
    rows = torch.rand(nodes, 5, generator=draws)
    return Data(x=rows, edge_index=edges, y=(rows.mean() > 0.5).long().view(1))


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    return [Batch.from_data_list([graph(draws) for _ in range(samples)]) for _ in range(4)]


def loss(model, batch):
    found = global_mean_pool(model(batch.x, batch.edge_index), batch.batch)
    return F.cross_entropy(found, batch.y)
