"""A ConvNeXt with layer scale, of timm."""

import timm
from of_pictures import data as data
from of_pictures import loss as loss


def model():
    return timm.create_model("convnext_atto", depths=(1, 1, 2, 1), dims=(8, 12, 16, 24), num_classes=2)
