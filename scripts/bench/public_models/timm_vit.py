"""A Vision Transformer with stochastic depth, of timm."""

import timm
from of_pictures import SIZE
from of_pictures import data as data
from of_pictures import loss as loss


def model():
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=SIZE, patch_size=8, embed_dim=24, depth=3, num_heads=3, num_classes=2,
        drop_path_rate=0.2,
    )  # fmt: skip
