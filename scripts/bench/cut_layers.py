"""A plug-in: `imagenet` with VGG12 of which some layers are cut into subnets, and the others whole on every node.

`istbench compare configs/light/imagenet-ist.toml --data DIR --plugin scripts/bench/cut_layers.py` compares them.
"""

from torch import nn

from istbench.subnets.groups import NeuronGroup
from istbench.workloads.imagenet import ImageNet


class Alternate(ImageNet):
    """The first hidden layer is cut, the third, and so on: the inner ones of pairs, as in a residual block."""

    name = "imagenet_alternate"

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """Of the groups of all layers, in their order, one and not the next."""
        return super().neuron_groups(model)[::2]


class Late(ImageNet):
    """The last five convolutions are cut, and both hidden linear layers."""

    name = "imagenet_late"

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """The last seven groups."""
        return super().neuron_groups(model)[-7:]


class Linears(ImageNet):
    """Both hidden linear layers are cut, and no convolution."""

    name = "imagenet_linears"

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """The last two groups."""
        return super().neuron_groups(model)[-2:]
