"""A graph attention network on batches of graphs, of PyTorch Geometric."""

from of_graphs import data as data
from of_graphs import loss as loss
from of_graphs import samples as samples
from torch_geometric.nn.models import GAT


def model():
    return GAT(5, 16, num_layers=2, out_channels=2, heads=2)
