"""Spare a process the import of torch's compiler, a second of CPU, until something compiles or configures it.

torch's optimizers and its DistributedDataParallel import `torch._dynamo`, and call functions of it that do nothing
where nothing is compiled. The command line imports this file first, the fork server after the methods.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

_NAME = "torch._dynamo"


class _OnDemand(ModuleType):
    """Stands for a module of the compiler. Any other of its names imports the module itself in its place."""

    def __init__(self, name: str, **known: Any) -> None:
        super().__init__(name)
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # tools ask all modules for those
            raise AttributeError(name)
        found = getattr(_imported(self.__name__), name)
        if name == "__path__":  # `import torch._dynamo.config` asks for it, and would then import the file again
            sys.meta_path.insert(0, _Once())
        return found


class _Once(Loader):
    """Finds, once, a module of the compiler that is imported already."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        sys.meta_path.remove(self)
        self._module = sys.modules.get(name)
        return None if self._module is None else ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        assert self._module is not None
        self._spec = self._module.__spec__
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self._spec


def is_imported() -> bool:
    """Whether this process has imported the compiler itself."""
    return _NAME in sys.modules and not isinstance(sys.modules[_NAME], _OnDemand)


def _imported(name: str = _NAME) -> ModuleType:
    """The module `name` of the compiler itself."""
    if not is_imported():
        del sys.modules[_NAME]
    return importlib.import_module(name)


def _disable(function: Any = None, *given: Any, **named: Any) -> Any:
    """`function`, which the compiler leaves alone as soon as it is imported.

    Modules, classes, and a decorator with arguments, which has no function yet, are left to the compiler itself.
    """
    if not isinstance(function, FunctionType):
        return _imported().disable(function, *given, **named)
    left_alone: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*values: Any, **options: Any) -> Any:
        nonlocal left_alone
        if left_alone is None and is_imported():
            left_alone = sys.modules[_NAME].disable(function, *given, **named)
        return (left_alone or function)(*values, **options)

    return call


def stand_in() -> ModuleType:
    """A module that answers as the compiler does before anything is compiled or configured."""
    return _OnDemand(
        _NAME,
        disable=_disable,
        graph_break=lambda _message="": None,
        trace_rules=_OnDemand(f"{_NAME}.trace_rules", clear_lru_cache=lambda: None),
        utils=_OnDemand(f"{_NAME}.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    )


if "torch.distributed.fsdp" in sys.modules:  # its first tensor reads the compiler's configuration
    importlib.import_module(_NAME)
else:
    sys.modules.setdefault(_NAME, stand_in())
