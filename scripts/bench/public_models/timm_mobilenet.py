"""A MobileNet v3, of timm."""

import timm
from of_pictures import data as data
from of_pictures import loss as loss


def model():
    return timm.create_model("mobilenetv3_small_050", num_classes=2)
