"""A fingerprint of weights."""

import hashlib

import torch
from torch import Tensor, nn


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over the bytes of all parameters and buffers of `model`, in name order."""
    digest = hashlib.sha256()
    tensors: dict[str, Tensor] = model.state_dict()
    for name in sorted(tensors):
        digest.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
