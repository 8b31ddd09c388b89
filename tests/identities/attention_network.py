"""A workload of short sequences and a layer of torch's transformer, whose heads and hidden units are found."""

import torch
from torch import nn

from istbench.workloads.initialise import Initializer, initial_rows
from istbench.workloads.neuron_groups.discovery import discover_groups
from istbench.workloads.toy import Toy

WIDTH, LENGTH = 8, 5
CLASSES = 4
SEQUENCES = 72
_GROUPS = {}


class Attending(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, heads, 10, dropout=0.0, batch_first=True)
        self.output = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.output(self.layer(x).mean(1))


class TinySequences(Toy):
    name = "tiny-sequences"
    batch_size = 6

    def __init__(self, heads=4):
        super().__init__()
        self._heads = heads
        draw = torch.Generator().manual_seed(2)
        labels = torch.arange(SEQUENCES) % CLASSES
        centres = torch.randn(CLASSES, LENGTH, WIDTH, generator=draw, dtype=torch.float64)
        noise = torch.randn(SEQUENCES, LENGTH, WIDTH, generator=draw, dtype=torch.float64)
        self._splits = ((centres[labels] + noise, labels),) * 2

    def build_model(self):
        return Attending(self._heads).double()

    def initial_rows(self, model, name, rows, seed):
        rule = Initializer("uniform", 0.5)
        return initial_rows(rule, model.get_parameter(name).shape, name, rows, seed)

    def neuron_groups(self, model):
        if self._heads not in _GROUPS:  # the same for all methods of a node
            x = torch.empty(2, LENGTH, WIDTH, dtype=torch.float64, device="meta")
            _GROUPS[self._heads] = discover_groups(model, lambda model: model(x), prove=False).groups
        assert [group.name for group in _GROUPS[self._heads]] == ["layer.self_attn", "layer.linear1"]
        return _GROUPS[self._heads]
