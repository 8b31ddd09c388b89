"""The plain data in a pickle: bytes, texts, numbers, lists, dictionaries and numpy arrays of bytes.

Nothing that a pickle names is ever imported or called: the names that a numpy array is made of stand for classes of
this file, which keep what they are given. Any other name ends the reading.
"""

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

_EXTENSIONS = {"EXT1", "EXT2", "EXT4"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}


class NotPlainData(Exception):  # noqa: N818  (it says what is wrong with a pickle, and is always caught)
    """A pickle that holds something else, or is no whole pickle; what it says goes to the user."""


def plain_data(content: bytes) -> Any:
    """What pickle `content` holds, with `StoredArray` in place of numpy's arrays.

    Raises:
        NotPlainData: for anything else, and for what is no whole pickle.
    """
    _check(content)
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except NotPlainData:
        raise
    except Exception as error:  # opcodes on the wrong kinds of values raise whatever these do
        raise NotPlainData(f"no whole pickle ({type(error).__name__})") from None


def _check(content: bytes) -> None:
    """Refuse what `_PlainUnpickler` does not see, and what would take far more memory than `content` has.

    The unpickler allocates a value before it reads the value, so every value must be there in full. It allocates
    its memo up to the largest number; a pickler counts these numbers up from 0 or 1.
    """
    stream = io.BytesIO(content)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if opcode.name in _EXTENSIONS:  # the unpickler may find them in a cache, without a call of `find_class`
                raise NotPlainData(f"it names extension {argument}, and nothing of it was run")
            if opcode.name in _PUTS and argument is not None and argument > count:
                raise NotPlainData(f"its memo number {argument:,} is out of order")
    except UnicodeDecodeError:  # `genops` reads no such text in protocol 0
        raise NotPlainData("a text in it is not ASCII, which needs pickle protocol 2 or later") from None
    except ValueError:
        raise NotPlainData("no whole pickle" if stream.read(1) else "it ends early") from None


class StoredArray:
    """A numpy array as a pickle has it."""

    def __init__(self, *_: object) -> None:
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def uint8(self, columns: int) -> np.ndarray:
        """The array: uint8 [n, columns].

        Raises:
            NotPlainData: where it is of another type or shape.
        """
        match self._state:
            case (_, (int(), int()) as shape, _StoredType(name=name), order, bytes() as content):
                whole = shape[1] == columns and math.prod(shape) == len(content) and not order
                if whole and name in ("u1", b"u1", "|u1", "uint8"):
                    return np.frombuffer(content, np.uint8).reshape(-1, columns)
        raise NotPlainData(f"its data is no array of bytes, {columns:,} a row")


class _StoredType:
    """A numpy dtype as a pickle has it: its name, which is all that is looked at."""

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
            raise NotPlainData(f"it names {module}.{name}, and nothing of it was run") from None

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlainData("it refers to objects outside of it")
