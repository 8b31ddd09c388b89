"""A plug-in: networks in which only some layers are cut into subnets, or with narrow blocks.

`istbench compare configs/light/imagenet-ist.toml --data DIR --plugin scripts/bench/cut_layers.py` compares variants
of VGG12, `configs/light/cifar10-ist.toml` variants of ResNet18.
"""

from torch import nn

from istbench.workloads.cifar10 import Cifar10
from istbench.workloads.imagenet import ImageNet
from istbench.workloads.models.resnet import BasicBlock
from istbench.workloads.neuron_groups.groups import NeuronGroup


class Alternate(ImageNet):
    """Every second hidden layer is cut, beginning with the first, as the inner layers of residual blocks."""

    name = "imagenet_alternate"

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """Every second group of the layers, in their order."""
        return super().neuron_groups(model)[::2]


class Late(ImageNet):
    """The last five convolutions and both hidden linear layers are cut."""

    name = "imagenet_late"

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """The last seven groups."""
        return super().neuron_groups(model)[-7:]


class Linears(ImageNet):
    """Only both hidden linear layers are cut."""

    name = "imagenet_linears"

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """The last two groups."""
        return super().neuron_groups(model)[-2:]


class ThinBlocks(Cifar10):
    """Every block has half the inner channels: the network of one of two nodes in `ist`."""

    name = "cifar10_thin"

    def build_model(self) -> nn.Module:
        """ResNet18 whose blocks have as many inner channels as a subnet of two nodes."""
        model = super().build_model()
        for block in model.modules():
            if isinstance(block, BasicBlock):
                before, after = block.conv1, block.conv2
                inner, stride = before.out_channels // 2, before.stride[0]
                block.conv1 = nn.Conv2d(before.in_channels, inner, 3, stride, padding=1, bias=False)
                block.norm1 = nn.BatchNorm2d(inner)
                block.conv2 = nn.Conv2d(inner, after.out_channels, 3, padding=1, bias=False)
        return model
