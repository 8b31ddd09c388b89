"""The state that a user's code keeps outside the model: globals, attributes of functions and classes, closures.

istbench calls the functions of a task file before training and between its steps: it tries them, warms up and
evaluates. A step counter in such a function should count the steps of training alone, as in the user's own loop. So
istbench puts the state back after its own calls.
"""

import copy
import functools
import random
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_MOST = 10_000  # entries of a container, or values of a tensor: a larger one is data
_FOREIGN = ("site-packages", "dist-packages")
_ITERATORS: tuple[type, ...] = (count, type(iter([])), type(iter(range(0))))
_PLAIN = (int, float, complex, str, bytes, type(None), types.ModuleType)


@contextmanager
def state_kept(folder: Path) -> Iterator[None]:
    """Afterwards, the state of the modules whose files lie in `folder` is as before.

    That is the value of every global, and the contents of those containers, objects of the modules' own classes,
    modules of torch, generators of random numbers, small tensors and arrays that one reaches from there.
    """
    saved = _Saved(_modules_in(folder))
    try:
        yield
    finally:
        saved.put_back()


@functools.cache
def _others(folder: Path) -> dict[str, types.ModuleType]:
    """Imported modules that are not in `folder`, by name: thousands, of which each call would ask the same."""
    return {}


def _modules_in(folder: Path) -> list[types.ModuleType]:
    """The imported modules of the user: those in `folder`, but no installed package."""
    start, others = f"{folder}/", _others(folder)
    found = []
    for name, module in list(sys.modules.items()):
        if others.get(name) is module:
            continue
        file = getattr(module, "__dict__", {}).get("__file__") or ""  # a lazy module imports what one asks of it
        own = file.startswith(start) and not any(part in file[len(start) :] for part in _FOREIGN)
        if own and name != "__main__" and name.partition(".")[0] != "istbench":
            found.append(module)
        elif file:  # one that is still imported has its file already
            others[name] = module
    return found


class _Saved:
    """The state that one reaches from the globals of `modules`."""

    def __init__(self, modules: Collection[types.ModuleType]) -> None:
        self._names = {module.__name__ for module in modules}
        self._seen: dict[int, Any] = {}
        self._undo: list[Callable[[], object]] = []
        queue: list[Any] = [vars(module) for module in modules]
        while queue:
            value = queue.pop()
            if not isinstance(value, _PLAIN) and id(value) not in self._seen:
                self._seen[id(value)] = value
                queue += self._saved(value)

    def put_back(self) -> None:
        """Give everything its contents of before."""
        with torch.no_grad():
            for undo in self._undo:
                undo()

    def _saved(self, value: Any) -> list[Any]:
        """Save the contents of `value`; returns the values in it."""
        if isinstance(value, dict | list | set | deque | bytearray):
            return self._container(value) if len(value) <= _MOST else []
        if isinstance(value, tuple):
            return list(value) if len(value) <= _MOST else []
        if isinstance(value, types.FunctionType):
            return self._function(value) if value.__module__ in self._names else []
        if isinstance(value, types.MethodType):
            return [value.__self__, value.__func__]
        if isinstance(value, functools.partial):
            return [value.func, value.args, value.keywords]
        if isinstance(value, type):
            return self._class(value) if value.__module__ in self._names else []
        if type(value).__module__ in self._names or isinstance(value, types.SimpleNamespace | nn.Module):
            return [vars(value)] if hasattr(value, "__dict__") else []
        self._values(value)
        return []

    def _container(self, value: Any) -> list[Any]:
        if isinstance(value, dict):
            before = {key: _again(inner) for key, inner in value.items()}

            def undo() -> None:
                for key in value.keys() - before.keys():
                    if not str(key).startswith("__"):  # torch.compile keeps its functions in the globals
                        del value[key]
                for key, inner in before.items():
                    if key not in value or value[key] is not inner:
                        value[key] = inner

            self._undo.append(undo)
            return list(value.values())
        items = [_again(inner) for inner in value]

        def refill() -> None:
            if len(value) != len(items) or any(a is not b for a, b in zip(value, items, strict=True)):
                value.clear()
                value.update(items) if isinstance(value, set) else value.extend(items)

        self._undo.append(refill)
        return items

    def _function(self, function: types.FunctionType) -> list[Any]:
        found: list[Any] = [vars(function), function.__defaults__ or (), function.__kwdefaults__ or {}]
        for cell in function.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:  # empty so far
                continue
            self._undo.append(functools.partial(setattr, cell, "cell_contents", _again(cell.cell_contents)))
        return found

    def _class(self, kind: type) -> list[Any]:
        before = {name: value for name, value in vars(kind).items() if not name.startswith("__")}

        def undo() -> None:
            now = dict(vars(kind))
            for name in [name for name in now if not name.startswith("__") and name not in before]:
                delattr(kind, name)
            for name, value in before.items():
                if now.get(name, undo) is not value:
                    setattr(kind, name, value)

        self._undo.append(undo)
        return list(before.values())

    def _values(self, value: Any) -> None:
        """Save the numbers in `value`: a small tensor or array, or the state of a generator."""
        if isinstance(value, Tensor):
            if value.layout == torch.strided and value.numel() <= _MOST and not value.is_inference():
                self._undo.append(functools.partial(_refill, value, value.detach().clone(), value._version))
        elif isinstance(value, np.ndarray):
            if value.size <= _MOST and value.flags.writeable:
                self._undo.append(functools.partial(np.copyto, value, value.copy()))
        elif isinstance(value, np.random.Generator):
            state = value.bit_generator.state
            self._undo.append(functools.partial(setattr, value.bit_generator, "state", state))
        elif isinstance(value, np.random.RandomState):
            self._undo.append(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
            self._undo.append(functools.partial(value.setstate, value.getstate()))
        elif isinstance(value, torch.Generator):
            self._undo.append(functools.partial(value.set_state, value.get_state()))


def _refill(tensor: Tensor, before: Tensor, version: int) -> None:
    if tensor._version != version:
        tensor.copy_(before)


def _again(value: Any) -> Any:
    """`value`, or the copy of an iterator, whose place cannot be put back."""
    if not isinstance(value, _ITERATORS):
        return value
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return copy.copy(value)
    except TypeError:  # of `count`, from Python 3.14 on
        return value
