"""A tiny workload that needs no data: Gaussian clusters. For tests, conformance checks and as an example."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from istbench.base.options.numbers import Classes, Count, Layers, Units
from istbench.base.options.options import option
from istbench.workloads.base import Batch, divided
from istbench.workloads.classifier import Classifier
from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.neuron_groups.structure import chain_groups

_SEED = 1
_SPREAD = 0.8  # standard deviation of a cluster, where the clusters' centres are standard normal
_TEST_SHARE = 0.25
_TEST_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class ToyOptions:
    hidden: Units = option(16, "units of a hidden layer")
    layers: Layers = option(2, "hidden layers")
    features: Units = option(8, "inputs")
    classes: Classes = option(4, "clusters to tell apart")
    samples: Count = option(512, "training samples")
    batch_norm: bool = option(False, "BatchNorm after every hidden layer")
    bias: bool = option(True, "biases in the linear layers")


class Toy(Classifier):
    """Classify points into a few Gaussian clusters. The data is computed, not stored."""

    name = "toy"
    Options = ToyOptions
    targets = (0.5, 0.8)
    batch_size = 16
    epochs = 10
    width = "hidden"

    options: ToyOptions

    # Data.

    def computed_bytes(self) -> int:
        return round(self.options.samples * (1 + _TEST_SHARE)) * (4 * self.options.features + 8)

    @property
    def train_size(self) -> int:
        return len(self._splits[0][1])

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Points float32 [b, features] and their clusters int64 [b], without augmentation."""
        points, clusters = self._splits[0]
        return points[indices], clusters[indices]

    def train_classes(self) -> Tensor:
        return self._splits[0][1]

    def test_batches(self) -> Iterator[Batch]:
        points, clusters = self._splits[1]
        return zip(points.split(_TEST_BATCH), clusters.split(_TEST_BATCH), strict=True)

    @cached_property
    def _splits(self) -> tuple[Batch, Batch]:
        """The training and the test points."""
        options = self.options
        generator = torch.Generator().manual_seed(_SEED)
        count = options.samples + max(1, round(options.samples * _TEST_SHARE))
        centres = torch.randn(options.classes, options.features, generator=generator)
        clusters = torch.arange(count) % options.classes
        noise = torch.randn(count, options.features, generator=generator)
        points = centres[clusters] + _SPREAD * noise
        cut = options.samples
        return (points[:cut], clusters[:cut]), (points[cut:], clusters[cut:])

    # Model.

    def build_model(self) -> nn.Sequential:
        """Linear layers with ReLU between them, and BatchNorm before each ReLU with `batch_norm`."""
        options = self.options
        model = nn.Sequential()
        width = options.features
        for number in range(1, options.layers + 1):
            model.add_module(f"linear{number}", nn.Linear(width, options.hidden, bias=options.bias))
            if options.batch_norm:
                model.add_module(f"norm{number}", nn.BatchNorm1d(options.hidden))
            model.add_module(f"relu{number}", nn.ReLU())
            width = options.hidden
        model.add_module("output", nn.Linear(width, options.classes, bias=options.bias))
        return model

    def meta_batch(self, samples: int) -> Batch:
        return torch.empty(samples, self.options.features), torch.empty(samples, dtype=torch.int64)

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """A group for each hidden layer. The output bias is in no group: every node keeps it."""
        return chain_groups(model, model.children())

    def narrowed(self, times: int) -> dict[str, Any]:
        return {"hidden": divided(self.options.hidden, times)}

    def method_defaults(self, method: str) -> dict[str, Any]:
        """Plain SGD with learning rate 0.1, few local steps."""
        return {"lr": 0.1, "local_steps": 4}
