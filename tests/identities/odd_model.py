"""A toy workload whose model has everything that breaks a careless parameter server, and a reference for it."""

import torch
from torch import nn
from torch.nn import functional as F

from istbench.studies.conformance.training import initial_model
from istbench.workloads.batches import ShardedBatches
from istbench.workloads.toy import Toy

WIDTH = 16


class WithChild(nn.Linear):
    """Owns parameters and has a child, whose own it uses first."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return super().forward(torch.tanh(self.inner(x)))


class Odd(nn.Module):
    """Its parameters are named in another order than they are used."""

    def __init__(self, features, classes):
        super().__init__()
        self.output = nn.Linear(WIDTH, classes)
        self.never = nn.Linear(3, 3)
        self.rare = nn.Linear(WIDTH, WIDTH)
        self.direct = nn.Linear(WIDTH, WIDTH)
        self.with_child = WithChild()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.again = nn.Linear(WIDTH, WIDTH, bias=False)
        self.shared = nn.Linear(WIDTH, WIDTH, bias=False)
        self.again.weight = self.shared.weight
        self.first = nn.Linear(features, WIDTH)

    def forward(self, x):
        rarely = bool(x[0, 0] > 0)  # on some nodes and not on others, and in some steps on none
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.again(torch.tanh(self.shared(x))))
        x = self.frozen(self.with_child(x))
        x = x + F.linear(x, self.direct.weight, self.direct.bias)
        return self.output(self.rare(x) if rarely else x)


class OddToy(Toy):
    name = "odd"

    def build_model(self):
        return Odd(self.options.features, self.options.classes)

    def neuron_groups(self, model):
        return []


def mean_gradient_training(workload, options, steps, *, nodes, parts=1):
    """One process: every node's gradient of its own minibatch, then one optimizer step on their mean.

    A node without a gradient of some parameter counts as zero, and where no node has one nothing happens.
    """
    model = initial_model(workload)
    optimizer = options.build(model.parameters())
    shards = [
        ShardedBatches(workload.train_size, workload.batch_size, rank=rank, world_size=nodes, seed=0)
        for rank in range(nodes)
    ]
    for step in range(steps):
        sums = {}
        for shard in shards:
            inputs, targets = workload.train_batch(shard.indices(step), shard.generator(step))
            model.zero_grad()
            for part in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
                (workload.loss(model, part) / parts).backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    sums[parameter] = sums[parameter] + parameter.grad if parameter in sums else parameter.grad
        for parameter in model.parameters():
            parameter.grad = sums[parameter] / nodes if parameter in sums else None
        optimizer.step()
    return model
