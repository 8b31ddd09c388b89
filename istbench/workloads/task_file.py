"""A user's file of functions, its settings, and errors that name the file, the line and the function."""

import ast
import difflib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from torch import Tensor, nn

from istbench.base.decode import convert
from istbench.base.error_lines import TASK_FILE, during
from istbench.base.errors import UserError, printable, shown
from istbench.base.options.numbers import Count, Epochs
from istbench.base.plugin_code import users_code
from istbench.results.metrics import falls_by_name

ARGUMENTS = {
    "model": (),
    "data": ("train",),
    "loss": ("model", "batch"),
    "optimizer": ("parameters",),
    "evaluate": ("model", "batches"),
    "neuron_groups": ("model",),
    "samples": ("batch",),
}
"""The functions that a task file may have, with their arguments. It needs `model` and `data`."""

_NEEDED = {"model": "def model(): returns a torch.nn.Module", "data": "def data(train): returns a torch Dataset or "
           "an iterable of batches"}  # fmt: skip


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of a task file, or attributes of its functions.

    Attributes:
        metric: its name; empty if the file does not say. lower_is_better: None if the file does not say.
        batch_size: samples in a minibatch of one node; None if the file does not say.
        samples: samples in every batch that an iterable yields; None if the file does not say, or has a function.
    """

    metric: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    lower_is_better: bool | None = None
    unit: Annotated[str, Meta(max_length=100)] = ""
    batch_size: Count | None = None
    samples: Count | None = None
    epochs: Epochs = 10.0
    targets: tuple[float, ...] = ()


_SETTINGS = Settings.__struct_fields__
_NO_FUNCTIONS = ("batch_size", "epochs", "lower_is_better")  # helpers of users may have the other names


class TaskFile:
    """The functions and settings of a task file.

    Attributes:
        name: of the file, without directories. folder: its directory. settings: with the metric filled in.

    Raises:
        UserError: for a missing function, one that is none, or a wrong setting.
    """

    def __init__(self, module: ModuleType, path: Path) -> None:
        self.name = printable(path.name)
        self.folder = path.resolve().parent
        self._functions = {name: getattr(module, name) for name in ARGUMENTS if hasattr(module, name)}
        if not callable(self._functions.get("samples")):  # a constant
            self._functions.pop("samples", None)
        missing = [text for name, text in _NEEDED.items() if name not in self._functions]
        if missing:
            raise UserError(f"{TASK_FILE} {self.name} lacks {' and '.join(missing)} (docs/your-model.md)")
        for name, function in self._functions.items():
            self._check_function(name, function)
        self._check_spelling(module)
        self.settings = self._with_metric(self._read_settings(vars(module)))

    def __contains__(self, function: str) -> bool:
        return function in self._functions

    def function(self, name: str) -> Callable[..., Any]:
        return self._functions[name]

    def first_of(self, *names: str) -> str:
        """The first of `names` of functions that the file has."""
        return next(name for name in names if name in self)

    def wrong(self, function: str, problem: str) -> UserError:
        """A `UserError` like `task file t.py, line 7, data: returns None; ...`."""
        return UserError(printable(f"{self.place(function)}: {problem}"))

    def place(self, function: str) -> str:
        """The place of `function`, such as `task file t.py, line 7, data`."""
        # The code of a decorated function is that of the decorator, in another file.
        own = inspect.unwrap(self._functions[function]) if function in self else None
        code = getattr(own, "__code__", None)
        line = f", line {code.co_firstlineno}" if code else ""
        return f"{TASK_FILE} {self.name}{line}, {function}"

    def call(self, name: str, *arguments: Any) -> Any:
        """What function `name` returns. An error names the line of the file, or the function."""
        with self.watched(name):
            return self._functions[name](*arguments)

    @contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """As `running`; a line on standard error names the function if the code inside takes long.

        This starts a thread, which would slow a step of training.
        """
        with users_code(f"{name} of {TASK_FILE} {self.name}"), self.running(name):
            yield

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Run code of function `name`, or of what it returned, inside; its prints go to standard error."""
        with redirect_stdout(sys.stderr), during("", self.place(name)):
            yield

    def _check_function(self, name: str, function: Any) -> None:
        arguments = ARGUMENTS[name]
        wanted = f"def {name}({', '.join(arguments)})"
        if isinstance(function, nn.Module) or not callable(function):
            raise UserError(
                f"{TASK_FILE} {self.name}: {name} is {shown(function)}; it should be a function, {wanted}"
            )
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            raise self.wrong(name, f"{error}; it should be {wanted}") from None
        except ValueError:  # a function of C has no signature
            return

    def _check_spelling(self, module: ModuleType) -> None:
        """Refuse names of `module` that istbench would ignore, but for a letter or two."""
        where, unused = f"{TASK_FILE} {self.name}", ARGUMENTS.keys() - vars(module).keys() - {"samples"}
        for name, value in vars(module).items():
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                near = difflib.get_close_matches(name, unused, n=1, cutoff=0.8)
                code = value.__code__
                if near and code.co_varnames[: code.co_argcount] == ARGUMENTS[near[0]]:
                    line = code.co_firstlineno
                    raise UserError(f"{where}, line {line}: {name} is no function of a task; write {near[0]}")
            elif not callable(value) and not isinstance(value, ModuleType):
                near = [own for own in _SETTINGS if name.lower().replace("_", "") == own.replace("_", "")]
                if near and name not in (near[0], near[0].upper()):
                    raise UserError(f"{where}: {name} is no setting; write {near[0]}")

    def _read_settings(self, constants: Mapping[str, Any]) -> Settings:
        found: dict[str, Any] = {}
        for field in msgspec.structs.fields(Settings):
            places = {name: constants.get(name) for name in (field.name, field.name.upper())}
            places |= {
                f"{name}.{field.name}": vars(f).get(field.name)
                for name, f in self._functions.items()
                if isinstance(f, FunctionType)
            }
            given = {
                where: value
                for where, value in places.items()
                if not (value is None or callable(value) or isinstance(value, ModuleType))
            }
            if field.name in _NO_FUNCTIONS and callable(constants.get(field.name)):
                raise UserError(f"{TASK_FILE} {self.name}: {field.name} is a function; it should be a constant")
            for where, value in given.items():
                value = plain(value)
                value = [value] if field.name == "targets" and isinstance(value, int | float) else value
                checked = convert(value, field.type, self._places(where))
                if found.setdefault(field.name, checked) != checked:
                    raise UserError(f"{TASK_FILE} {self.name}: {' and '.join(given)} differ; leave one of them")
        return Settings(**found)

    def _places(self, where: str) -> Callable[[tuple[str | int, ...]], str]:
        return lambda _: f"{TASK_FILE} {self.name}: {where}"

    def _with_metric(self, settings: Settings) -> Settings:
        """Fill in the name of the metric, and whether a lower one is better."""
        name, lower = settings.metric, settings.lower_is_better
        if "evaluate" not in self:
            if name not in (None, "loss"):
                raise UserError(
                    f"{TASK_FILE} {self.name}: metric is {name!r}; without evaluate(model, batches) "
                    "istbench reports the mean loss; write evaluate, or leave metric out"
                )
            return msgspec.structs.replace(settings, metric="loss", lower_is_better=lower is None or lower)
        name = name or _first_key(self._functions["evaluate"])
        if name is None:
            raise self.wrong("evaluate", 'name the metric that it returns: write metric = "accuracy" in the file')
        if lower is None:
            lower = falls_by_name(name)
        if lower is None:
            raise self.wrong("evaluate", f"write lower_is_better = True or False for its metric {name!r}")
        return msgspec.structs.replace(settings, metric=name, lower_is_better=lower)


def plain(value: Any) -> Any:
    """A `value` of Python for a tensor or an array."""
    return value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value


def _first_key(function: Any) -> str | None:
    """The first key of the dictionary that `function` returns, where its source shows one."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Return) else None
        if isinstance(value, ast.Dict) and value.keys and isinstance(value.keys[0], ast.Constant):
            key = value.keys[0].value
            return key if isinstance(key, str) else None
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "dict" and value.keywords:
            return value.keywords[0].arg
    return None
