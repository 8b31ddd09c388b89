"""Functions that numba compiles, cached on disk."""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from istbench.errors import UserError, printable

_Function = TypeVar("_Function", bound=Callable[..., Any])


class NumbaImportError(UserError, ImportError):
    """numba does not load. The fork server, which imports in advance, goes on after an `ImportError`."""


def jit(function: _Function, **options: Any) -> _Function:
    """`function` compiled on its first call, with numba's `options`, and cached on disk.

    It may call and read what is compiled, or constant, in its own package of istbench, and no other's: a change
    there has it compiled again.

    Raises:
        NumbaImportError: numba does not load, because it needs another version of numpy for example.
    """
    try:
        import numba  # takes a third of a second, and few commands need it
    except ImportError as error:
        raise NumbaImportError(
            f"numba does not load: {printable(str(error))}; install it again: pip install --upgrade numba"
        ) from None
    with _cache_of(package_of(function.__module__), numba.config):
        # A package in a folder nobody may write, with no home either, has nowhere to cache.
        try:
            compiled: _Function = numba.njit(cache=True, error_model="numpy", **options)(function)
        except RuntimeError:
            compiled = numba.njit(error_model="numpy", **options)(function)
    return compiled


@contextmanager
def _cache_of(package: str, config: Any) -> Iterator[None]:
    """Inside, numba caches in a folder that is named after what the sources of `package` say.

    By itself it compiles a function again when its own file has changed, but not when another has that it calls.
    """
    before = config.CACHE_DIR
    folder = f"compiled-{package}-{sources_digest(package)}"
    config.CACHE_DIR = str((Path(before) if before else _cache()) / folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


def _cache() -> Path:
    """Beside the sources of a checkout, which a clean-up takes along; else among the user's.

    Of an installed package pip removes what it wrote itself: a folder left there hides a checkout installed next.
    """
    beside = Path(__file__).parent / "__pycache__"
    users = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    installed = not {"site-packages", "dist-packages"}.isdisjoint(beside.parts)
    writable = os.access(beside if beside.exists() else beside.parent, os.W_OK)
    return beside if writable and not installed else users / "istbench"


def package_of(module: str) -> str:
    """The package of istbench that `module` is in, "cluster" say."""
    return module.split(".")[1]


@functools.cache
def sources_digest(package: str) -> str:
    """A few digits that change with any source of that package, all that its compiled functions use."""
    here = Path(__file__).parent / package
    digest = hashlib.sha256()
    for path in sorted(here.rglob("*.py")):
        digest.update(f"{path.relative_to(here)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
