"""A workload of small images and narrow convolutional networks, in float64: the order of sums hardly matters."""

import torch

from istbench.workloads.models.resnet import cifar_resnet18, resnet_groups
from istbench.workloads.models.vgg import vgg12, vgg_groups
from istbench.workloads.toy import Toy

WIDTH = 4
CLASSES = 4
IMAGES = 72
PIXELS = {"resnet18": 16, "vgg12": 64}  # four columns of the first fully connected layer a channel of VGG12


class TinyImages(Toy):
    name = "tiny-images"
    batch_size = 6

    def __init__(self, model):
        super().__init__()
        self.model = model
        draw = torch.Generator().manual_seed(2)
        shape = (3, PIXELS[model], PIXELS[model])
        labels = torch.arange(IMAGES) % CLASSES
        centres = torch.randn(CLASSES, *shape, generator=draw, dtype=torch.float64)
        images = centres[labels] + torch.randn(IMAGES, *shape, generator=draw, dtype=torch.float64)
        self._splits = ((images, labels),) * 2

    def build_model(self):
        if self.model == "resnet18":
            return cifar_resnet18(WIDTH, CLASSES).double()
        return vgg12(WIDTH, CLASSES, PIXELS[self.model]).double()

    def neuron_groups(self, model):
        return resnet_groups(model) if self.model == "resnet18" else vgg_groups(model)
