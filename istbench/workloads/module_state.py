"""The state of a model that its own forward pass may change: parameters, buffers and attributes of its modules."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, Tensor)


@contextmanager
def modules_kept(model: nn.Module, but: Collection[nn.Module] = ()) -> Iterator[None]:
    """Afterwards the modules of `model` have their tensors and attributes of before, with the same values.

    A forward pass in training may move a momentum encoder, bound weights, or count its calls.

    but: modules whose buffers keep their new values.
    """
    modules = [(vars(module), _copied(vars(module))) for module in model.modules()]
    free = {id(buffer) for module in but for buffer in module.buffers(recurse=False)}
    others = [value for attributes, _ in modules for value in attributes.values() if isinstance(value, Tensor)]
    tensors = [own for own in (*model.parameters(), *model.buffers(), *others) if id(own) not in free]
    values = [(own, own.data, own.detach().clone(), own.requires_grad) for own in tensors]
    try:
        yield
    finally:
        for now, attributes in modules:
            _put_back(now, attributes)
        with torch.no_grad():
            for own, memory, before, trained in values:
                _refill(own, memory, before)
                if own.is_leaf:
                    own.requires_grad_(trained)


def plain_attributes(model: nn.Module) -> dict[str, str]:
    """Numbers, texts, lists and tensors among the attributes of the modules of `model`, as text, by name."""
    return {
        f"{name}.{attribute}".removeprefix("."): repr(value)
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if attribute != "training"
        and all(isinstance(one, _PLAIN) for one in (value if isinstance(value, list) else [value]))
    }


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    """A copy of the `attributes` of a module, and of their dictionaries and lists, such as `_buffers`."""
    return {name: value.copy() if type(value) in (dict, list) else value for name, value in attributes.items()}


def _put_back(now: dict[str, Any], before: dict[str, Any]) -> None:
    for name in now.keys() - before.keys():
        del now[name]
    for name, value in before.items():
        own = now.get(name)
        if type(value) is dict and type(own) is dict:
            own.clear()
            own.update(value)
        elif type(value) is list and type(own) is list:
            own[:] = value
        else:
            now[name] = value


def _refill(own: Tensor, memory: Tensor, before: Tensor) -> None:
    """Give `own` the `memory` and the values that it had `before`."""
    if own.layout != torch.strided:
        own.copy_(before)
        return
    if own.data_ptr() != memory.data_ptr():
        own.data = memory
    if not torch.equal(own, before):
        own.copy_(before)
