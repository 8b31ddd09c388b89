"""A workload of functions, as in a notebook: written to a task file, which worker processes can import."""

import ast
import dis
import inspect
import linecache
import math
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from istbench.base.errors import UserError, shown
from istbench.base.files import write_errors, writing_whole
from istbench.base.options.task_file import task_name

_MARK = "# Written by istbench.Task: changes here are lost."
_PLAIN = (int, float, str, bool, bytes, types.NoneType)
# Cells that Python makes for the functions of a class, and those that annotate it.
_OF_CLASSES = {"__class__", "__classdict__", "__conditional_annotations__"}
_LONGEST_VALUE = 10_000  # characters of a global that a file can hold


@dataclass(frozen=True, kw_only=True)
class Task:
    """Your own model, data and loss as a workload of `istbench.run` and `istbench.compare`.

    Worker processes import a file, so the functions are written to `file`, together with the functions, classes,
    imports and plain values that they use. That file is an ordinary task file for the command line, too.

    Attributes:
        model, data, loss, evaluate, optimizer, neuron_groups: as in a task file (`istbench new task`); functions
            with a name, not lambdas.
        file: in the current folder by default, since its functions may import files beside it.
    """

    model: Callable[[], Any]
    data: Callable[[bool], Any]
    loss: Callable[..., Any] | None = None
    evaluate: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    neuron_groups: Callable[..., Any] | None = None
    metric: str | None = None
    lower_is_better: bool | None = None
    targets: tuple[float, ...] | None = None
    batch_size: int | None = None
    epochs: float | None = None
    file: str | Path = "notebook_task.py"

    def write(self) -> Path:
        """Write the task file; returns its path.

        Raises:
            UserError: for a function that no file can hold, and for a file that `Task` has not written.
        """
        path = Path(self.file)
        if path.suffix != ".py":
            raise UserError(f"Task(file={shown(str(path))}) is no task file: its name ends in .py")
        task_name(path)
        text = self.source()
        with write_errors(path):
            before = path.read_text(encoding="utf-8") if path.is_file() else None
            if before is not None and not before.startswith(_MARK):
                raise UserError(f"{path} is not from Task: give Task(file=...) another name, or move the file")
            if before != text:
                with writing_whole(path) as file:
                    file.write(text.encode())
        return path

    def source(self) -> str:
        """The text of the task file.

        Raises:
            UserError: for a function that no file can hold, and for another global of a name of `Task`.
        """
        written = _Source({name: value for name, value in vars(self).items() if name != "file"})
        for name in ("model", "data", "loss", "evaluate", "optimizer", "neuron_groups"):
            function = getattr(self, name)
            if function is not None or name in ("model", "data"):
                if not callable(function):
                    raise UserError(f"Task.{name} is {shown(repr(function))}, no function")
                written.add(name, function, f"Task.{name}")
        own = {
            name: value
            for name in ("metric", "lower_is_better", "targets", "batch_size", "epochs")
            if (value := getattr(self, name)) is not None
        }
        lines = [f"{name} = {_text(value) or repr(value)}" for name, value in own.items()]
        values = [*written.values, *lines]
        imports = [f"import {name}" for name in ("pathlib", "torch") if any(f"{name}." in one for one in values)]
        parts = [_MARK], [*imports, *written.imports], values, written.definitions
        return "\n\n".join("\n".join(part) for part in parts if part).rstrip() + "\n"


class _Source:
    """Functions and classes with all that they use, as the text of a module.

    reserved: what the names of a task file stand for there.
    """

    def __init__(self, reserved: Mapping[str, Any]) -> None:
        self._reserved, self._known = reserved, dict[str, Any]()
        self.imports: list[str] = []
        self.values: list[str] = []
        self.definitions: list[str] = []

    def add(self, name: str, value: Any, where: str) -> None:
        """Make `value` known as `name`. where: names it in errors.

        Raises:
            UserError: if no text can.
        """
        if name in self._known:
            if self._known[name] is not value:
                raise UserError(f"{where}: two different things are called {name}; rename one")
            return
        self._known[name] = value
        text = _text(value)
        if name in self._reserved and value is not self._reserved[name] and text != _text(self._reserved[name]):
            raise UserError(f"{where} uses another {name} than Task({name}=...), its name in the file; rename one")
        if isinstance(value, types.ModuleType):
            self.imports.append(f"import {value.__name__} as {name}")
        elif text is not None and len(text) <= _LONGEST_VALUE:
            self.values.append(f"{name} = {text}")
        elif _importable(value):
            self.imports.append(f"from {value.__module__} import {value.__name__} as {name}")
        elif isinstance(inspect.unwrap(value), types.FunctionType | type):
            self._define(name, value, where)
        else:
            kind = f"of type {type(value).__name__}" if text is None else f"of {len(text):,} characters"
            raise UserError(f"{where} needs {name}, a value {kind} of this session: make it inside a function")

    def _define(self, name: str, value: Any, where: str) -> None:
        if value.__name__ == "<lambda>":
            raise UserError(f"{where} is a lambda; write it with def")
        if value.__name__ != name:
            self.add(value.__name__, value, where)
            self.definitions.append(f"{name} = {value.__name__}\n\n")
            return
        around = {one for function in _functions(value) for one in function.__code__.co_freevars} - _OF_CLASSES
        if around:
            raise UserError(
                f"{where} uses {min(around)} of the function around {name}; make {name} outside of functions"
            )
        try:
            text = _source_of(value)
            parsed = ast.parse(text).body[0]
        except (OSError, TypeError, SyntaxError):
            raise UserError(f"{where}: Python knows no source of {name}; write a task file") from None
        if inspect.unwrap(value) is not value and not getattr(parsed, "decorator_list", None):
            raise UserError(f"{where}: {name} wraps a function, not by a decorator above its def; write one there")
        known = _globals(value)
        for used in sorted({*_loaded(compile(text, "<task>", "exec", dont_inherit=True))}):
            if used in known and known[used] is not value:
                self.add(used, known[used], where)
        self.definitions.append(text.rstrip() + "\n\n")


def _source_of(value: Any) -> str:
    """The text of a function or a class, also of a class in a notebook, which has no file."""
    if isinstance(value, type):
        own = [one for one in _functions(value) if one.__qualname__.startswith(f"{value.__qualname__}.")]
        files = [one.__code__.co_filename for one in own]
        # A class without functions, such as a dataclass, is looked for in all cells, the last one first.
        cells = [name for name in reversed(list(linecache.cache)) if not Path(name).exists()]
        for file in files or cells if value.__module__ == "__main__" else files:
            text = "".join(linecache.getlines(file))
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                    return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
    return textwrap.dedent(inspect.getsource(value))


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """`value`, or the functions of the class `value`, without the decorators around them."""
    members = vars(value).values() if isinstance(value, type) else [value]
    for member in members:
        inner = next((getattr(member, of) for of in ("__func__", "fget", "func") if hasattr(member, of)), member)
        function = inspect.unwrap(inner)
        if isinstance(function, types.FunctionType):
            yield function


def _globals(value: Any) -> Mapping[str, Any]:
    """The global names of the session or the module in which `value` was written."""
    for function in _functions(value):
        return function.__globals__
    return vars(sys.modules[value.__module__]) if value.__module__ in sys.modules else {}


def _loaded(code: types.CodeType) -> Iterator[str]:
    """The global names that `code` uses, with all functions and classes inside it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _loaded(inner)


def _importable(value: Any) -> bool:
    """Whether other processes can import `value`: it is of a module, not of this session."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or getattr(module, "__spec__", None) is None or module.__name__ == "__main__":
        return False
    return getattr(module, getattr(value, "__name__", ""), None) is value


def _text(value: Any) -> str | None:
    """The expression for a plain value; None for any other."""
    if isinstance(value, Path):
        return f"pathlib.Path({str(value)!r})"
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):
        return repr(value) if type(value).__name__ == "dtype" else f"torch.{value!r}"
    if type(value) in (tuple, list, set, dict):
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        plain = all(type(one) in (tuple, *_PLAIN) and _text(one) == repr(one) for one in inner)
        return repr(value) if plain else None
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value) if type(value) in _PLAIN else None
