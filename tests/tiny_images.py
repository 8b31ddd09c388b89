"""The toy workload's points as images of two convolutions, for tests."""

from torch import nn

from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot
from istbench.workloads.toy import Toy

CHANNELS = 8


class TinyImages(Toy):
    """Points of eight features as images [b, 2, 2, 2]."""

    name = "tiny_images"

    def train_batch(self, indices, generator):
        points, clusters = super().train_batch(indices, generator)
        return points.view(-1, 2, 2, 2), clusters

    def test_batches(self):
        for points, clusters in super().test_batches():
            yield points.view(-1, 2, 2, 2), clusters

    def build_model(self):
        return nn.Sequential(
            nn.Conv2d(2, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS), nn.Tanh(),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.Tanh(), nn.Flatten(),
            nn.Linear(4 * CHANNELS, self.options.classes),
        )  # fmt: skip

    def neuron_groups(self, model):
        norm = [Slot(f"1.{part}", 0) for part in ("weight", "bias", "running_mean", "running_var")]
        return [NeuronGroup("inner", CHANNELS, (Slot("0.weight", 0), *norm, Slot("3.weight", 1)))]
