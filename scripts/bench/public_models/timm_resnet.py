"""A ResNet with BatchNorm, of timm."""

import timm
from of_pictures import data as data
from of_pictures import loss as loss


def model():
    return timm.create_model("resnet10t", num_classes=2)
