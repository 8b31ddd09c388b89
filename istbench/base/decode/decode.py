"""Decoding of outside values into types with bounds, by msgspec, with errors for readers."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from istbench.base.decode.explain import explain
from istbench.base.decode.files import name_problem
from istbench.base.decode.toml import Locate, path_text
from istbench.base.errors import UserError, printable, shown

T = TypeVar("T")
_NUMBER = re.compile(r"([+-]?)(\d*)(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_LONGEST_NUMBER = 400


def decode_json(content: bytes, kind: type[T], where: str, way_out: str) -> T:
    """JSON `content` as a `kind`; `where` names the file, `way_out` ends the error.

    Raises:
        UserError: naming the file and the field.
    """
    try:
        return msgspec.json.decode(content, type=kind, dec_hook=decode_own)
    except msgspec.ValidationError as error:
        raw = _raw_json(content)
        reason = explain(error, raw, kind, lambda path: path_text(path) or "it")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"not JSON ({printable(str(error)).removeprefix('JSON is malformed: ')})"
    except RecursionError:
        reason = "nested too deep"
    raise UserError(f"{where}: {reason}; {way_out}") from None


def convert(value: Any, kind: type[T], locate: Locate, *, text: bool = False) -> T:
    """`value` (dictionaries, lists, numbers and texts) as a `kind`.

    Args:
        locate: gives the place of a part of `value`, for errors.
        text: whether texts may stand for numbers and flags, as on a command line.

    Raises:
        UserError: naming the place and the type or bound that is broken.
    """
    try:
        # Otherwise a text could stand for bytes, as their base64.
        return msgspec.convert(value, kind, strict=not text, builtin_types=(bytes,), dec_hook=decode_own)
    except msgspec.ValidationError as error:
        plain = plain_numbers(value) if text else value
        if plain != value:
            with contextlib.suppress(msgspec.ValidationError):
                return msgspec.convert(plain, kind, strict=False, builtin_types=(bytes,), dec_hook=decode_own)
        raise UserError(explain(error, value, kind, locate)) from None
    except RecursionError:
        raise UserError(f"{locate(())} is nested too deep") from None
    except UnicodeEncodeError:  # a lone surrogate, from bytes of a command line that are not UTF-8
        raise UserError(f"{locate(())} must be text in UTF-8, not {shown(value)}") from None


def plain_numbers(value: Any) -> Any:
    """`value` with numbers as JSON writes them: `.9` as `0.9`, `+0.1` as `0.1`, `5.` as `5`; lists of them too."""
    if isinstance(value, list | tuple):
        return [plain_numbers(part) for part in value]
    found = _NUMBER.fullmatch(value) if isinstance(value, str) and len(value) <= _LONGEST_NUMBER else None
    if found is None:
        return value
    sign, whole, fraction, exponent = (part or "" for part in found.groups())
    if not whole and not fraction.strip("."):
        return value
    return f"{sign.strip('+')}{whole or '0'}{fraction.rstrip('.')}{exponent}"


def decode_own(kind: type, value: Any) -> Any:
    """Decode the types that msgspec does not know: types with a `decode` class method, and paths.

    Raises:
        ValueError: for a wrong `value`; the message names the right ones.
    """
    if hasattr(kind, "decode"):
        return kind.decode(value)
    if issubclass(kind, Path):
        if isinstance(value, str) and name_problem(value) is None:
            return Path(value)
        raise ValueError("must be the name of a file or directory, in UTF-8")
    raise ValueError(f"must be a {kind.__name__}")


class Written:
    """A value of a type with `decode`, known by its plain form. Values of one type and form are equal."""

    def encode_plain(self) -> int | str:
        """The inverse of `decode`."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.encode_plain())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash(str(self))


def encode_own(value: Any) -> Any:
    """The inverse of `decode_own`: a plain value."""
    if isinstance(value, Written):
        return value.encode_plain()
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"cannot write a {type(value).__name__}")


def encode_json(value: Any) -> bytes:
    """`value` as JSON. Bytes of paths that are not UTF-8 become question marks: such paths are for readers only."""
    try:
        return msgspec.json.encode(value, enc_hook=encode_own)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=encode_own)
        return json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")


def _raw_json(content: bytes) -> Any:
    with contextlib.suppress(ValueError, RecursionError, UnicodeDecodeError):
        return json.loads(content)
    return msgspec.UNSET
