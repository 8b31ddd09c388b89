"""A plug-in: networks with some layers cut into subnets and the others whole on every node, or with thin blocks.

`istbench compare configs/light/imagenet-ist.toml --data DIR --plugin scripts/bench/cut_layers.py` compares VGG12's,
`configs/light/cifar10-ist.toml` ResNet18's.
"""

from torch import nn

from istbench.subnets.groups import NeuronGroup
from istbench.workloads.cifar10 import Cifar10
from istbench.workloads.imagenet import ImageNet
from istbench.workloads.models.resnet import BasicBlock


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


class ThinBlocks(Cifar10):
    """Every block has half the inner channels: the network that a node of two trains in `ist`."""

    name = "cifar10_thin"

    def build_model(self) -> nn.Module:
        """ResNet18 whose blocks have as many inner channels as a subnet's, one of two."""
        model = super().build_model()
        for block in model.modules():
            if isinstance(block, BasicBlock):
                before, after = block.conv1, block.conv2
                inner = before.out_channels // 2
                block.conv1 = nn.Conv2d(before.in_channels, inner, 3, before.stride, padding=1, bias=False)
                block.norm1 = nn.BatchNorm2d(inner)
                block.conv2 = nn.Conv2d(inner, after.out_channels, 3, padding=1, bias=False)
        return model
