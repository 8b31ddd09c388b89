"""The plain data in a pickle: bytes, texts, numbers, lists, dictionaries and numpy arrays of bytes.

Nothing that a pickle names is ever imported or called: the names that a numpy array is made of stand for classes of
this file, which keep what they are given. Any other name ends the reading.
"""

import io
import math
import pickle
from typing import Any, ClassVar

import numpy as np

_BYTEARRAY = pickle.BYTEARRAY8[0]


class NotPlainData(Exception):  # noqa: N818  (it says what is wrong with a pickle, and is always caught)
    """A pickle that holds something else, or is no whole pickle; what it says goes to the user."""


def plain_data(content: bytes) -> Any:
    """What pickle `content` holds, with `StoredArray` in place of numpy's arrays.

    Raises:
        NotPlainData: for anything else, and for what is no whole pickle.
    """
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except NotPlainData:
        raise
    except (EOFError, IndexError):
        raise NotPlainData("it ends early") from None
    except Exception as error:  # opcodes on the wrong kinds of values raise whatever these do
        raise NotPlainData(f"no whole pickle ({type(error).__name__})") from None


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


# The one written in Python: it keeps its memo in a dictionary, where the other takes memory at the file's word.
class _PlainUnpickler(pickle._Unpickler):
    # A bytearray is filled with zeros before the file is seen to be too short for it.
    dispatch: ClassVar = {code: load for code, load in pickle._Unpickler.dispatch.items() if code != _BYTEARRAY}

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise NotPlainData(f"it names {module}.{name}, and nothing of it was run") from None

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlainData("it refers to objects outside of it")
