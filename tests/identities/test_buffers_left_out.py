"""Buffers that `state_dict` leaves out (`persistent=False`), in checkpoints. `node_*` run on every node."""

import copy

import torch
from torch import nn

from istbench.launch.processes.on_nodes import on_nodes
from istbench.node import checkpoint
from istbench.studies.conformance.training import assembled, largest_difference, set_up, through_disk, train
from istbench.workloads.toy import Toy

METHODS = [
    ("ddp", {}),
    ("local_sgd", {"local_steps": 4}),
    ("diloco", {"local_steps": 4}),
    ("fsdp", {"group_params": 1}),
    ("parameter_server", {}),
]


class Centred(nn.Module):
    """Subtracts a running mean. Only training changes it, and no checkpoint of torch has it."""

    def __init__(self, features, classes):
        super().__init__()
        self.input = nn.Linear(features, 16)
        self.output = nn.Linear(16, classes)
        self.register_buffer("mean", torch.zeros(16), persistent=False)

    def forward(self, x):
        x = self.input(x)
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.output(torch.tanh(x - self.mean))


class CentredToy(Toy):
    def build_model(self):
        return Centred(self.options.features, self.options.classes)

    def neuron_groups(self, model):
        return []

    def initial_buffer(self, model, name):
        return torch.zeros(16)


class ConstantToy(Toy):
    """A constant buffer, as of rotary embeddings."""

    def build_model(self):
        model = super().build_model()
        model.register_buffer("inv_freq", torch.ones(4), persistent=False)
        return model

    def initial_buffer(self, model, name):
        return torch.ones(4)


def opened(workload):
    workload.open(workload.prepare(None, None, lambda *_: None))
    return workload


def node_resumed(fabric):
    workload, differences = opened(CentredToy()), {}
    for name, options in METHODS:
        method = set_up(fabric, workload, name, options)
        train(fabric, workload, method, 0, 6)
        method.drain()
        saved = through_disk(method.state_dict(), fabric.rank)
        train(fabric, workload, method, 6, 12)
        wanted = copy.deepcopy(assembled(fabric, method))
        resumed = set_up(fabric, workload, name, options)
        resumed.load_state_dict(saved)
        train(fabric, workload, resumed, 6, 12)
        found = assembled(fabric, resumed)
        if found is not None:
            differences[name] = largest_difference(wanted, found)
    return differences


def test_a_resumed_run_has_the_buffers_that_training_changed():
    assert on_nodes(node_resumed, 2)[0] == {name: 0.0 for name, _ in METHODS}


RESHARDED = ["ist", "streaming_ist"]


def node_saved(fabric, folder):
    workload = opened(ConstantToy())
    for name in RESHARDED:
        method = set_up(fabric, workload, name, {})
        train(fabric, workload, method, 0, 5)
        method.drain()
        checkpoint.write_rank(folder / name, 0, fabric.rank, method.state_dict())


def node_resharded(fabric, folder):
    buffers = {}
    for name in RESHARDED:
        method = set_up(fabric, opened(ConstantToy()), name, {})
        states = [checkpoint.read_rank(folder / name, 0, rank) for rank in range(2)]
        method.load_state_dict(method.resharded(states, fabric.rank))
        buffers[name] = method.state_dict()["subnet"]["inv_freq"].tolist()
    return buffers


def test_another_number_of_nodes_takes_a_state_with_such_a_buffer(tmp_path):
    on_nodes(node_saved, 2, tmp_path)
    assert on_nodes(node_resharded, 3, tmp_path) == [dict.fromkeys(RESHARDED, [1.0] * 4)] * 3
