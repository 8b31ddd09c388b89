"""Numba where it is installed, plain Python (about a hundred times slower, same result) where it is not."""

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def jit(function: _Function) -> _Function:
    """`function` compiled on its first call, and cached on disk; itself without numba."""
    try:
        numba = importlib.import_module("numba")
    except ImportError:
        return function
    # A package in a folder nobody may write, with no home either, has nowhere to cache.
    try:
        compiled: _Function = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:
        compiled = numba.njit(error_model="numpy")(function)
    return compiled
