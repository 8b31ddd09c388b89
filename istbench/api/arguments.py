"""Arguments of the functions of `import istbench`: checks of their types, and errors that name no flags."""

import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from istbench.base.decode import utf8_path
from istbench.base.errors import RunFailed, UserError, shown, unknown_name
from istbench.base.options.run import RUN_OPTIONS

_Function = TypeVar("_Function", bound=Callable[..., Any])

_SWITCHES = {"again", "controls", *(option.name for option in RUN_OPTIONS if option.default is False)}
_SAME = (
    "again", "backward", "bandwidth", "baseline", "by", "cluster", "controls", "dtype", "gpus-per-host",
    "latency", "layers", "methods", "minutes", "nodes", "out", "parameters", "restarts", "samples", "seeds", "step",
    "workload",
)  # fmt: skip
_NAMES = {
    **{f"--{name}": name.replace("-", "_") for name in _SAME},
    **{option.flag: option.name for option in RUN_OPTIONS},
    "--baseline-results": "baseline",
    "--fail-if": "condition",
    "--method": "methods",
    "--plugin": "plugins",
    "--set": "method_options",
    "--workload-set": "workload_options",
}
"""The arguments of Python, by the flags of commands."""
_COMMAND = re.compile(r"(`(?!--)[^`]*`)")  # of a command line that a message quotes
_FLAG = re.compile(
    r"(?P<leave>\bleave (?:out )?)?(?P<flag>--[a-z][a-z-]*)"
    r"(?: (?P<pair>[a-z]\w*)=(?P<of_pair>[^\s;,:)]+)"
    r"| (?P<value>(?:[\d.]|cpu|cuda|bf16|fp16|[A-Z]{2})[^\s;]*?)(?=[,:.)]*(?:[\s;]|$)))?"
    r"(?P<name>:|(?= (?:out|needs|is)\b))?"
)
_NUMBER = re.compile(r"-?[\d.]+(?:e[-+]?\d+)?|\.\.\.|[A-Z]+")
_KINDS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    Path: (Path, "a path"),
    type(None): (type(None), "None"),
}


def from_python(function: _Function) -> _Function:
    """Check the arguments of `function` by their annotations, and name them in its errors as Python does.

    A command that calls `function` unwraps it (`inspect.unwrap`): its user typed flags.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            checked = _checked(function, signature, given, named)
            return function(*checked.args, **checked.kwargs)
        except (UserError, RunFailed) as error:
            message, *output = str(error).split("\n")
            error.args = ("\n".join([in_python(message), *output]),)
            raise

    return call  # type: ignore[return-value]


def texts(given: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    """One name or path, or several, as texts."""
    return (str(given),) if isinstance(given, str | Path) else tuple(map(str, given))


def in_python(text: str) -> str:
    """`text` with the arguments of Python in place of the flags of commands: `timeout_s=9` for `--timeout 9`."""
    parts = _COMMAND.split(text)
    return "".join(part if place % 2 else _FLAG.sub(_argument, part) for place, part in enumerate(parts))


def _argument(found: re.Match[str]) -> str:
    name = _NAMES.get(found["flag"])
    if name is None:
        return found[0]
    leave, after = found["leave"] or "", found["name"] or ""
    if found["pair"]:
        return f'{leave}{name}={{"{found["pair"]}": {_literal(found["of_pair"])}}}{after}'
    if found["value"]:
        return f"{leave}{name}={_literal(found['value'])}{after}"
    asks = name in _SWITCHES and not leave and found["name"] is None
    return f"{leave}{name}{'=True' * asks}{after}"


def _literal(value: str) -> str:
    return value if _NUMBER.fullmatch(value) else f'"{value}"'


def _checked(
    function: Callable[..., Any], signature: inspect.Signature, given: tuple[Any, ...], named: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments, with numbers of Python for those of numpy.

    Raises:
        UserError: for an argument of another name, or of another type than its annotation.
    """
    known = signature.parameters
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values()):
        for name in named:
            if name not in known:
                own = [one for one in known if one != "self"]
                raise unknown_name("argument", name, own, f"of {function.__name__}")
    bound = signature.bind(*given, **named)
    for name, value in bound.arguments.items():
        kind = _annotation(function, known[name])
        if not _fits(value, kind):
            raise UserError(f"{name} must be {_words(kind)}, not {shown(value)}")
        if isinstance(value, str | Path) and Path in get_args(kind):
            utf8_path(str(value), name)
        bound.arguments[name] = _plain(value)
    return bound


def _plain(value: Any) -> Any:
    """`value`, with numbers and lists of Python for those of numpy and pandas."""
    if isinstance(value, bool | int | float | str | Mapping) or not isinstance(value, Real | Collection):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    return [_plain(one) for one in value]


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The type of `parameter`; Any where it takes several values."""
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        return Any
    kind = parameter.annotation
    if isinstance(kind, str):
        kind = eval(kind, {**_imported_types(), **function.__globals__})
    return Any if kind is inspect.Parameter.empty else kind


def _imported_types() -> dict[str, type]:
    """Our types in annotations, by name. Nobody has a value of one whose module is not imported yet."""
    places = {"Task": "istbench.api.task", "Results": "istbench.api.results"}
    return {name: getattr(sys.modules.get(module), name, _Absent) for name, module in places.items()}


class _Absent:
    """Stands for a type of which no value exists."""


def _fits(value: Any, kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is Any:
        return True
    if origin is None:
        wanted, _ = _KINDS.get(kind, (kind, ""))
        return isinstance(value, wanted) and (kind is bool or not isinstance(value, bool)) and not _too_large(value)
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        return False
    return not isinstance(value, Collection) or all(_fits(one, parts[0]) for one in value)


def _too_large(value: Any) -> bool:
    """Whether `value` is a whole number that no floating-point number is near."""
    return isinstance(value, Integral) and abs(int(value)) > sys.float_info.max


def _words(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        said = list(dict.fromkeys(_words(part) for part in parts))
        return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} or {said[-1]}"
    if origin is None:
        return _KINDS[kind][1] if kind in _KINDS else f"of type {kind.__name__}"
    return "a dictionary" if issubclass(origin, Mapping) else f"a list, each {_words(parts[0])}"
