"""Numba where it is installed, plain Python (some hundred times slower, same result) where it is not."""

import functools
import hashlib
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def jit(function: _Function) -> _Function:
    """`function` compiled on its first call, and cached on disk; itself without numba."""
    try:
        numba = importlib.import_module("numba")
    except ImportError:
        return function
    with _cache_of_these_sources(numba.config):
        # A package in a folder nobody may write, with no home either, has nowhere to cache.
        try:
            compiled: _Function = numba.njit(cache=True, error_model="numpy")(function)
        except RuntimeError:
            compiled = numba.njit(error_model="numpy")(function)
    return compiled


@contextmanager
def _cache_of_these_sources(config: Any) -> Iterator[None]:
    """Inside, numba caches in a folder that is named after what the sources of `istbench.cluster` say.

    By itself it compiles a function again when its own file has changed, but not when another has that it calls.
    """
    before = config.CACHE_DIR
    if not before:
        config.CACHE_DIR = _folder()
    try:
        yield
    finally:
        config.CACHE_DIR = before


@functools.cache
def _folder() -> str:
    here = Path(__file__).parent
    sources = b"".join(path.read_bytes() for path in sorted(here.parent.rglob("*.py")))
    return str(here / "__pycache__" / f"compiled-{hashlib.sha256(sources).hexdigest()[:16]}")
