"""Plain attributes of a user's model, such as a counter in its forward pass, through a checkpoint.

The state of a method has the parameters and the buffers of the model. But `ddp` and its kin train the user's own
object. Its forward pass may also depend on numbers, texts, tensors and lists of them in attributes of its modules.
"""

from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

_OF_TORCH = vars(nn.Module()).keys()


class OwnAttributes:
    """The attributes of the modules of `model` that change from now on."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = self._now()

    def changed(self) -> dict[str, dict[str, Any]]:
        """Those with another value than before, by module and name."""
        found = {
            module: {name: value for name, value in own.items() if not _same(self._before[module].get(name), value)}
            for module, own in self._now().items()
        }
        return {module: own for module, own in found.items() if own}

    def restore(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the attributes that `changed` found."""
        device = next(self._model.parameters()).device
        for module, own in saved.items():
            for name, value in own.items():
                before = self._before[module].get(name)
                place = before.device if isinstance(before, Tensor) else device
                setattr(self._model.get_submodule(module), name, _copied(value, place))

    def _now(self) -> dict[str, dict[str, Any]]:
        """Copies of the attributes, by module and name. Views of parameters and buffers come with these."""
        others = {_memory(tensor) for tensor in chain(self._model.parameters(), self._model.buffers())}
        return {
            module: {
                name: _copied(value)
                for name, value in vars(part).items()
                if name not in _OF_TORCH and _plain(value, others)
            }
            for module, part in self._model.named_modules()
        }


def _plain(value: Any, others: Collection[int]) -> bool:
    if isinstance(value, list):
        return all(_plain(part, others) for part in value)
    if isinstance(value, Tensor):
        return value.layout == torch.strided and _memory(value) not in others
    return isinstance(value, int | float | str | None)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _copied(value: Any, device: torch.device | None = None) -> Any:
    if isinstance(value, list):
        return [_copied(part, device) for part in value]
    return value.detach().to(device or value.device, copy=True) if isinstance(value, Tensor) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return (one.dtype, one.device) == (other.dtype, other.device) and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
