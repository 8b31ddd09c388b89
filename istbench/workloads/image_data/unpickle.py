"""Read plain data from a pickle: bytes, texts, numbers, lists, dictionaries and numpy arrays of integers.

It never imports or calls a name from the pickle. The names in a numpy array stand for functions of this file, which
only store their arguments. Any other name is an error.
"""

import io
import math
import pickle
import pickletools
import re
from typing import Any

import numpy as np

_EXTENSIONS = {"EXT1", "EXT2", "EXT4"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}


class NotPlainData(Exception):  # noqa: N818  (it names the problem of a pickle, and is always caught)
    """A pickle with other data, or an incomplete pickle. Users see the message."""


def plain_data(content: bytes) -> Any:
    """The data in pickle `content`, with `StoredArray` in place of numpy's arrays.

    Raises:
        NotPlainData: for other data, or an incomplete pickle.
    """
    _check(content)
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except NotPlainData:
        raise
    except Exception as error:  # opcodes on values of the wrong type raise errors of any type
        raise NotPlainData(f"not a complete pickle ({type(error).__name__})") from None


def _check(content: bytes) -> None:
    """Refuse opcodes that `_PlainUnpickler` does not see, or that need far more memory than `content` has.

    The unpickler allocates a value before it reads the value, so every value must be complete. It allocates its
    memo up to the largest number; picklers count these numbers from 0 or 1.
    """
    stream = io.BytesIO(content)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if opcode.name in _EXTENSIONS:  # the unpickler may take them from a cache without `find_class`
                raise NotPlainData(f"it names extension {argument}; istbench ran none of it")
            if opcode.name in _PUTS and argument is not None and argument > count:
                raise NotPlainData(f"its memo number {argument:,} is out of order")
    except UnicodeDecodeError:  # `genops` cannot read such text in protocol 0
        raise NotPlainData("a text in it is not ASCII, which needs pickle protocol 2 or later") from None
    except ValueError:
        raise NotPlainData("not a complete pickle" if stream.read(1) else "it ends early") from None


class StoredArray:
    """A numpy array or number in a pickle."""

    def __init__(self, *_: object) -> None:
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    @classmethod
    def from_buffer(cls, content: object, kind: object, shape: object, order: object) -> "StoredArray":
        """As protocol 5 stores an array; `order` is C or F."""
        found = cls()
        found._state = (1, shape, kind, order == "F", bytes(content) if isinstance(content, bytearray) else content)
        return found

    @classmethod
    def number(cls, kind: object, content: object) -> "StoredArray":
        """As numpy stores a number."""
        return cls.from_buffer(content, kind, (), "C")

    def integers(self) -> np.ndarray:
        """The array of integers, of any shape.

        Raises:
            NotPlainData: if it has another type, or is incomplete.
        """
        match self._state:
            case (_, tuple(shape), _StoredType(kind=str(kind)), order, bytes() as content):
                sized = all(type(size) is int and size >= 0 for size in shape)
                if sized and math.prod(shape) * np.dtype(kind).itemsize == len(content):
                    return np.frombuffer(content, kind).reshape(shape, order="F" if order else "C")
        raise NotPlainData("it has an array of other data than integers")


class _StoredType:
    """A numpy dtype in a pickle. kind: its numpy name, with the order of its bytes; None if not of integers."""

    def __init__(self, name: object = None, *_: object) -> None:
        text = name.decode("latin-1") if isinstance(name, bytes) else str(name)
        self.kind = f"<{text}" if re.fullmatch("[iu][1248]", text) else None

    def __setstate__(self, state: object) -> None:
        match state:
            case (_, ">" | b">", *_) if self.kind:
                self.kind = f">{self.kind[1:]}"


def _latin_1(text: object, encoding: object) -> bytes:
    """Bytes as Python 3 stores them by a protocol before 3: as a call of `codecs.encode`."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise NotPlainData("it names _codecs.encode for other data than bytes; istbench ran none of it")
    return text.encode("latin-1")


_STAND_INS = {
    ("_codecs", "encode"): _latin_1,
    ("numpy", "ndarray"): StoredArray,
    ("numpy", "dtype"): _StoredType,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")  # of numpy 1 and 2
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", StoredArray),
            ("multiarray", "scalar", StoredArray.number),
            ("numeric", "_frombuffer", StoredArray.from_buffer),
        )
    },
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise NotPlainData(f"it names {module}.{name}; istbench ran none of it") from None

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlainData("it refers to objects outside the pickle")
