"""All tensors of a model for a checkpoint: those of `state_dict`, and the buffers that this leaves out."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def model_state(model: nn.Module) -> dict[str, Any]:
    """The tensors of `model` by name, with buffers of `persistent=False`: a forward pass may change those too."""
    state = model.state_dict()
    return state | {name: own for name, own in model.named_buffers() if name not in state}


@torch.no_grad()
def load_model_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Give `model` the values of `state`, that of `model_state`. A forward pass may have made or enlarged buffers.

    Raises:
        KeyError, RuntimeError: `state` is of another model.
    """
    device = next((own.device for own in model.parameters()), torch.device("cpu"))
    for path, module in model.named_modules():
        for own, buffer in module._buffers.items():  # with those that are None so far
            saved = state.get(f"{path}.{own}" if path else own)
            if saved is not None and (buffer is None or buffer.shape != saved.shape):
                setattr(module, own, saved.to(device if buffer is None else buffer.device, copy=True))
    kept = model.state_dict().keys()
    model.load_state_dict({name: value for name, value in state.items() if name in kept})
    for name, buffer in model.named_buffers():
        if name not in kept:
            buffer.copy_(state[name])
