"""A UNet that removes noise, of diffusers."""

import torch
from diffusers import UNet2DModel
from torch.nn import functional as F


def model():
    return UNet2DModel(
        sample_size=16, in_channels=1, out_channels=1, block_out_channels=(8, 16), layers_per_block=1,
        norm_num_groups=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
    )  # fmt: skip


def data(train):
    draws = torch.Generator().manual_seed(int(train))
    return [(torch.rand(2, 1, 16, 16, generator=draws), torch.randint(99, (2,), generator=draws)) for _ in range(4)]


def loss(model, batch):
    pictures, times = batch
    noise = torch.randn_like(pictures)
    return F.mse_loss(model(pictures + noise, times).sample, noise)
