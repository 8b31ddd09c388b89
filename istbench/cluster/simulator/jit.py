"""Numba where it is installed, plain Python (some hundred times slower, same result) where it is not."""

import functools
import hashlib
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def jit(function: _Function, **options: Any) -> _Function:
    """`function` compiled on its first call, with numba's `options`, and cached on disk; itself without numba."""
    try:
        numba = importlib.import_module("numba")
    except ImportError:
        return function
    with _cache_of_these_sources(numba.config):
        # A package in a folder nobody may write, with no home either, has nowhere to cache.
        try:
            compiled: _Function = numba.njit(cache=True, error_model="numpy", **options)(function)
        except RuntimeError:
            compiled = numba.njit(error_model="numpy", **options)(function)
    return compiled


@contextmanager
def _cache_of_these_sources(config: Any) -> Iterator[None]:
    """Inside, numba caches in a folder that is named after what the sources of `istbench.cluster` say.

    By itself it compiles a function again when its own file has changed, but not when another has that it calls.
    """
    before = config.CACHE_DIR
    config.CACHE_DIR = str((Path(before) if before else _cache()) / f"compiled-{sources_digest()}")
    try:
        yield
    finally:
        config.CACHE_DIR = before


def _cache() -> Path:
    beside = Path(__file__).parent / "__pycache__"
    users = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return beside if os.access(beside if beside.exists() else beside.parent, os.W_OK) else users / "istbench"


@functools.cache
def sources_digest() -> str:
    """A few digits that change with any source of `istbench.cluster`, which is all that compiled functions use."""
    here = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(here.rglob("*.py")):
        digest.update(f"{path.relative_to(here)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
