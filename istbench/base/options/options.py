"""Options of methods and workloads: frozen dataclasses, built from texts or from values of their type."""

import dataclasses
import math
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from istbench.base.decode import convert
from istbench.base.errors import UserError, shown, unknown_name
from istbench.base.options.texts import Short, Text
from istbench.base.options.tunable import Tunable

_Scalar = bool | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float | Text | None
_Values = Annotated[list[_Scalar], Meta(max_length=1000)]
_Nested = _Scalar | Annotated[list[_Scalar | _Values], Meta(max_length=1000)] | dict[Short, _Scalar | _Values]
if typing.TYPE_CHECKING:
    OptionValues = dict[str, Any]
else:
    OptionValues = Annotated[dict[Short, _Nested], Meta(max_length=200)]
"""Values of options by name, as results record them."""

# Bounds of numbers whose type has no bounds.
_MOST_WHOLE, _MOST = 2**53, 1e15
_FLAGS = {"yes": True, "1": True, "no": False, "0": False}


def option(default: Any, help_text: str, *, tune: Tunable | None = None) -> Any:
    """A field of a dataclass of options. tune: the range in which `istbench tune` tries it."""
    metadata = {"help": help_text} if tune is None else {"help": help_text, "tune": tune}
    return dataclasses.field(default=default, metadata=metadata)


def build_options(options: type, given: Mapping[str, Any], what: str, defaults: Mapping[str, Any]) -> Any:
    """An instance of dataclass `options` from `given` (texts as typed, or values of their type).

    `defaults` replace the dataclass's own defaults; unknown names in them are ignored. `what` names the owner in
    errors, such as "method 'ist'".

    Raises:
        UserError: for an unknown name (with the nearest valid one), a value of another type or out of bounds, or
            values that contradict each other.
    """
    kinds = typing.get_type_hints(options, include_extras=True)
    known = {f.name for f in dataclasses.fields(options)}
    values = {name: value for name, value in defaults.items() if name in known}
    for name, value in given.items():
        if name not in known:
            raise unknown_name("option", name, known, f"of {what}")
        values[name] = parse_option(value, kinds[name], f"{what}: option {name}")
    try:
        return options(**values)
    except UserError as error:  # options that contradict each other
        raise UserError(f"{what}: {error}") from None


def parse_option(value: Any, kind: Any, where: str) -> Any:
    """`value`, a text as typed or already of type `kind`, as one of that type within its bounds.

    Raises:
        UserError: naming `where`, for a value of another type or out of bounds.
    """
    if isinstance(value, str):
        text = value.strip()
        value = _FLAGS.get(text.lower(), text) if kind is bool else text
        value = value.lower() if kind is bool and isinstance(value, str) else value
    typed = isinstance(value, str)
    if _is_tuple(kind):
        parts = [part.strip() for part in value.split(",")] if typed else value
        value = parts if isinstance(parts, list | tuple) else [parts]
    parsed = convert(value, kind, lambda _: where, text=typed)
    _check_size(parsed, where)
    return parsed


def _check_size(parsed: Any, where: str) -> None:
    """Refuse a number out of the default bounds, also in a tuple."""
    if isinstance(parsed, tuple):
        for part in parsed:
            _check_size(part, where)
    if isinstance(parsed, int) and abs(parsed) > _MOST_WHOLE:
        raise UserError(f"{where} must be a whole number of at most {_MOST_WHOLE}, not {parsed}")
    if isinstance(parsed, float) and not (math.isfinite(parsed) and abs(parsed) <= _MOST):
        raise UserError(f"{where} must be a number of at most {_MOST:g}, not {parsed:g}")


def _is_tuple(kind: Any) -> bool:
    """Whether an option of `kind` has several numbers, separated by commas in a text."""
    return typing.get_origin(typing.get_args(kind)[0] if hasattr(kind, "__metadata__") else kind) is tuple


def option_text(value: Any) -> str:
    """The value of an option as typed on a command line."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def label_of(name: str, options: Mapping[str, Any]) -> str:
    """`local_sgd local_steps=40`: a name with its options as typed on a command line."""
    return " ".join([name, *(f"{option}={option_text(value)}" for option, value in options.items())])


def parse_pairs(pairs: Iterable[str], flag: str) -> dict[str, str]:
    """`name=value` texts as a dictionary.

    Raises:
        UserError: for a text without a name and an equals sign, or a name given twice.
    """
    parsed: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = (part.strip() for part in pair.partition("="))
        if not separator or not name:
            raise UserError(f"{flag} {shown(pair)} is not of the form name=value")
        if name in parsed:
            raise UserError(f"{flag} {shown(name)} is given twice; leave one out")
        parsed[name] = value
    return parsed
