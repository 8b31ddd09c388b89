"""ResNet18 in its CIFAR form (He et al., arXiv 1512.03385, made for images of about 32x32)."""

from dataclasses import replace
from typing import Literal

from torch import Tensor, nn

from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.neuron_groups.structure import chain_groups

_STAGES = 4
_BLOCKS = 2  # per stage


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut: the identity, or a 1x1 projection where the shape changes.

    inner_channels: channels between the two convolutions. late: as in `NeuronGroup`.
    """

    def __init__(
        self, channels_in: int, channels: int, stride: int, inner_channels: int, *, late: bool = False
    ) -> None:
        super().__init__()
        self.late = late
        self.conv1 = nn.Conv2d(channels_in, inner_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner_channels)
        self.conv2 = nn.Conv2d(inner_channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut.add_module("conv", nn.Conv2d(channels_in, channels, 1, stride, bias=False))
            self.shortcut.add_module("norm", nn.BatchNorm2d(channels))

    @property
    def inner(self) -> tuple[nn.Module, ...]:
        """The chain of modules from the block's input to the second convolution, with the block's own channels."""
        return self.conv1, self.norm1, self.relu, self.conv2

    def forward(self, x: Tensor) -> Tensor:
        """[b, channels_in, h, w] to [b, channels, h / stride, w / stride]."""
        inner = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def cifar_resnet18(
    width: int, classes: int, *, widen: int = 1, widened: Literal["late", "all"] = "late", narrow: int = 1
) -> nn.Sequential:
    """Images [b, 3, h, w] to scores [b, classes].

    A 3x3 stem without max-pool; four stages of width, 2, 4 and 8 times width channels, two basic blocks each; the
    mean over pixels; a linear layer. Width 64 is the published network: 11,173,962 parameters for 10 classes.

    widen: inner channels of the blocks in `widened`, as a multiple of the block's other channels. narrow: divides
    the inner channels of every block, rounded up.
    """
    model = nn.Sequential()
    model.add_module("stem", nn.Conv2d(3, width, 3, padding=1, bias=False))
    model.add_module("stem_norm", nn.BatchNorm2d(width))
    model.add_module("stem_relu", nn.ReLU(inplace=True))
    channels = width
    for stage in range(_STAGES):
        for block in range(_BLOCKS):
            stride = 2 if stage and not block else 1
            late = stage > 0 and stride == 1
            inner = -(-(width << stage) * (widen if late or widened == "all" else 1) // narrow)
            name = f"block{stage + 1}_{block + 1}"
            model.add_module(name, BasicBlock(channels, width << stage, stride, inner, late=late))
            channels = width << stage
    model.add_module("pool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("output", nn.Linear(channels, classes))
    return model


def resnet_groups(model: nn.Module) -> list[NeuronGroup]:
    """A group for the inner channels of every block. Every subnet has all channels between blocks.

    Late groups are those of the blocks behind the first stage whose shortcut is the identity.
    """
    blocks = {name: block for name, block in model.named_modules() if isinstance(block, BasicBlock)}
    return [
        replace(group, late=block.late)
        for name, block in blocks.items()
        for group in chain_groups(model, block.inner, prefix=f"{name}.")
    ]
