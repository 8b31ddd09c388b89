"""Read plain data from a pickle: bytes, texts, numbers, lists, dictionaries and numpy arrays of bytes.

It never imports or calls a name from the pickle. The names in a numpy array stand for classes of this file, which
only store their arguments. Any other name is an error.
"""

import io
import math
import pickle
import pickletools
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
    """A numpy array in a pickle."""

    def __init__(self, *_: object) -> None:
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def uint8(self, columns: int) -> np.ndarray:
        """The array: uint8 [n, columns].

        Raises:
            NotPlainData: if it has another type or shape.
        """
        match self._state:
            case (_, (int(), int()) as shape, _StoredType(name=name), order, bytes() as content):
                whole = shape[1] == columns and math.prod(shape) == len(content) and not order
                if whole and name in ("u1", b"u1", "|u1", "uint8"):
                    return np.frombuffer(content, np.uint8).reshape(-1, columns)
        raise NotPlainData(f"its data is not an array of bytes with {columns:,} in a row")


class _StoredType:
    """A numpy dtype in a pickle. Only its name counts."""

    def __init__(self, name: object = None, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        return


_STAND_INS = {
    ("numpy", "ndarray"): StoredArray,
    ("numpy", "dtype"): _StoredType,
    ("numpy.core.multiarray", "_reconstruct"): StoredArray,
    ("numpy._core.multiarray", "_reconstruct"): StoredArray,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise NotPlainData(f"it names {module}.{name}; istbench ran none of it") from None

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlainData("it refers to objects outside the pickle")
