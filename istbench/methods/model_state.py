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
    """Give `model` the values of `state`, that of `model_state`. A buffer left out may have another shape there.

    Raises:
        KeyError, RuntimeError: `state` is of another model.
    """
    kept = model.state_dict().keys()
    model.load_state_dict({name: value for name, value in state.items() if name in kept})
    for name, buffer in model.named_buffers():
        if name in kept:
            continue
        if buffer.shape == state[name].shape:
            buffer.copy_(state[name])
        else:
            path, _, own = name.rpartition(".")
            setattr(model.get_submodule(path), own, state[name].to(buffer.device, copy=True))
