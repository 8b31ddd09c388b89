"""One line about a wrong value: its place, the value found, and the type or bound that it breaks."""

import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from istbench.base.decode.toml import Locate
from istbench.base.errors import nearest_name, printable, shown

_NOUNS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "array": "a list",
    "object": "a table", "null": "none",
}  # fmt: skip
_BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}


def explain(error: msgspec.ValidationError, raw: Any, kind: Any, locate: Locate) -> str:
    """One line for a reader: the place, the type or bound, and the value found."""
    of_name = re.fullmatch(r"(.*) - at `key` in `(\$.*)`", str(error), re.DOTALL)
    if of_name:
        at = locate(_parse_path(of_name[2].removeprefix("$")))
        return f"a name in {at} {_wanted(of_name[1], None)}"
    reason, _, at = str(error).partition(" - at `$")
    path = _parse_path(at.removesuffix("`")) if at else ()
    found = re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL)
    if found:
        known = field_names(type_at(kind, path))
        here = locate((*path, found[1]))
        return f"{here}: unknown name{nearest_name(found[1], known)}"
    found = re.fullmatch(r"Object missing required field `(.*)`", reason)
    if found:
        return f"{locate((*path, found[1]))} is missing"
    value, there = _value_at(raw, path)
    return f"{locate(path)} {_wanted(reason, type_at(kind, path))}{f', not {shown(value)}' if there else ''}"


def _wanted(reason: str, kind: Any) -> str:
    choices = [str(choice) for part in _union(kind) for choice in literal_choices(part)]
    if reason.startswith("Invalid enum value") and choices:
        kinds = [_bare(part) for part in _union(kind)]
        number = [noun for part, noun in ((int, "a whole number"), (float, "a number")) if part in kinds]
        return f"must be one of {', '.join(choices + number)}"
    found = re.fullmatch(r"Expected `([^`]*)`(?:, got .*| (>=|<=|>|<) ([-+.\w]+))", reason, re.DOTALL)
    if found:
        names = [name.strip() for name in found[1].split("|")]
        nouns = [_NOUNS.get(name, name) for name in names if name != "null" or len(names) == 1]
        if found[2] and abs(float(found[3])) == sys.float_info.max:
            return "must be a finite number"
        bound = f" {_BOUNDS[found[2]]} {_plain(found[3])}" if found[2] else ""
        return f"must be {' or '.join(nouns)}{bound}"
    found = re.fullmatch(r"Expected `(\w+)` of length (>=|<=) (\d+)", reason)
    if found:
        least = "at least" if found[2] == ">=" else "at most"
        return f"must have {least} {found[3]} {'characters' if found[1] == 'str' else 'of them'}"
    found = re.fullmatch(r"Expected `str` matching regex '\^?(.*?)(?:\$|\\\\Z)?'", reason)
    if found:
        return f"must match {found[1]}"
    if "out of range" in reason:
        return "is out of range"
    return printable(reason[0].lower() + reason[1:])


def _plain(number: str) -> str:
    """`10000` and `1e+09` unchanged, `1.0` as `1`."""
    return number if number.isdigit() else f"{float(number):g}"


def type_at(kind: Any, path: tuple[str | int, ...]) -> Any:
    """The type of `kind` at `path`, without None and annotations; None if unknown."""
    kind = _bare(kind)
    for key in path:
        options = _union(kind)
        kind = None
        for option in options:
            inner = _inner(option, key)
            if inner is not None:
                kind = _bare(inner)
                break
        if kind is None:
            return None
    return kind


def field_names(kind: Any) -> list[str]:
    """Names of the fields of a type; empty for a type without fields."""
    for option in _union(kind):
        if hasattr(option, "__struct_encode_fields__"):
            return list(option.__struct_encode_fields__)
        if hasattr(option, "__dataclass_fields__"):
            return list(option.__dataclass_fields__)
    return []


def literal_choices(kind: Any) -> tuple[Any, ...]:
    """The values of a Literal type in order; empty for another type."""
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def _inner(kind: Any, key: str | int) -> Any:
    if isinstance(key, str) and (hasattr(kind, "__struct_fields__") or hasattr(kind, "__dataclass_fields__")):
        return typing.get_type_hints(kind, include_extras=True).get(key)
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (list, tuple) and isinstance(key, int):
        return arguments[0] if len(arguments) == 1 or arguments[-1] is Ellipsis else arguments[key]
    origin = typing.get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return arguments[1]
    return None


def _bare(kind: Any) -> Any:
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    parts = [part for part in _union(kind) if part is not types.NoneType]
    return _bare(parts[0]) if len(parts) == 1 and parts[0] is not kind else kind


def _union(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return tuple(_bare(part) for part in typing.get_args(kind))
    return (kind,)


def _parse_path(text: str) -> tuple[str | int, ...]:
    keys: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", text):
        keys.append(name if name else -1 if index == "..." else int(index))
    return tuple(keys)


def _value_at(raw: Any, path: tuple[str | int, ...]) -> tuple[Any, bool]:
    if raw is msgspec.UNSET:
        return None, False
    for key in path:
        try:
            raw = raw[key]
        except (KeyError, IndexError, TypeError):
            return None, False
    return raw, True
