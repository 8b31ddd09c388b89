"""A graph isomorphism network with BatchNorm on batches of graphs, of PyTorch Geometric."""

from of_graphs import data as data
from of_graphs import loss as loss
from of_graphs import samples as samples
from torch_geometric.nn.models import GIN


def model():
    return GIN(5, 16, num_layers=2, out_channels=2, norm="batch_norm")
