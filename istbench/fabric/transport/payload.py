"""What a message carries."""

import torch
from torch import Tensor


def payload_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, as bytes."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
