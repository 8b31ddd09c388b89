"""VGG12 of the IST paper's ImageNet experiment (after Simonyan and Zisserman, arXiv 1409.1556)."""

from dataclasses import replace
from typing import Literal

from torch import nn

from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.neuron_groups.structure import chain_groups

_STAGES = ((1,), (2,), (4, 4), (8, 8), (8, 8, 8))  # channels of each convolution, divided by the width
_HIDDEN = (64, 64)  # units of each hidden fully connected layer, divided by the width


def vgg12(
    width: int, classes: int, resolution: int, *, widen: int = 1, widened: Literal["late", "all"] = "late"
) -> nn.Sequential:
    """Images [b, 3, resolution, resolution], of 32 pixels or more, to scores [b, classes].

    3x3 convolutions in five stages, a max-pool after each, and three fully connected layers: 12 layers with
    weights. Width 64 is VGG's. The IST paper (arXiv 1910.02120) names VGG12 but gives no sizes. Inferred: nine
    convolutions, VGG11's eight and another in the last stage. Two hidden layers of 4,096 units, as in every VGG;
    `width` scales them with the channels. BatchNorm after every layer but the last, since subnets do not train
    without it; so there is no dropout, and no bias before BatchNorm.

    widen: units of the hidden layers in `widened`, as a multiple. Late layers are the fully connected ones.
    """
    units = widen * width
    width = units if widened == "all" else width
    model = nn.Sequential()
    channels = 3
    for number, stage in enumerate(_STAGES, start=1):
        for place, times in enumerate(stage, start=1):
            name = f"{number}_{place}"
            model.add_module(f"conv{name}", nn.Conv2d(channels, times * width, 3, padding=1, bias=False))
            model.add_module(f"norm{name}", nn.BatchNorm2d(times * width))
            model.add_module(f"relu{name}", nn.ReLU(inplace=True))
            channels = times * width
        model.add_module(f"pool{number}", nn.MaxPool2d(2))
    model.add_module("flatten", nn.Flatten())
    fan_in = channels * (resolution >> len(_STAGES)) ** 2
    for place, times in enumerate(_HIDDEN, start=1):
        model.add_module(f"linear{place}", nn.Linear(fan_in, times * units, bias=False))
        model.add_module(f"linear_norm{place}", nn.BatchNorm1d(times * units))
        model.add_module(f"linear_relu{place}", nn.ReLU(inplace=True))
        fan_in = times * units
    model.add_module("output", nn.Linear(fan_in, classes))
    return model


def vgg_groups(model: nn.Module) -> list[NeuronGroup]:
    """A group for the channels of every convolution and for the units of each hidden layer.

    Late groups are those of the fully connected layers. Without a residual stream, channels that are dealt meet
    other channels in the next layer after every round: docs/images.md has the accuracy that this costs.
    """
    groups = chain_groups(model, model.children())
    first = len(groups) - len(_HIDDEN)
    return [replace(group, late=number >= first) for number, group in enumerate(groups)]
