"""An EfficientNet whose blocks drop out at random (drop path), of timm."""

import timm
from of_pictures import data as data
from of_pictures import loss as loss


def model():
    return timm.create_model("efficientnet_b0", num_classes=2, drop_path_rate=0.3)
