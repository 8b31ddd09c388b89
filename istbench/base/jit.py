"""Functions that numba compiles, cached on disk."""

import dis
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from istbench.base.cache import sources_digest
from istbench.base.errors import UserError, printable

_Function = TypeVar("_Function", bound=Callable[..., Any])
_compiled: list[Any] = []
_parts: set[Callable[..., Any]] = set()


class NumbaImportError(UserError, ImportError):
    """numba does not load. An `ImportError`, because the fork server ignores those in its early imports."""


def jit(function: _Function, *, allocates: bool = True, **options: Any) -> _Function:
    """Compile `function` on its first call, with numba's `options`, and cache it on disk.

    It may use compiled functions and constants of its own package of istbench only: a change in that package
    compiles it again.

    allocates: it makes arrays. A function that only changes its caller's arrays is some ten times faster without.

    Raises:
        NumbaImportError: if numba does not load, for example because it needs another version of numpy.
    """
    numba = load_numba()
    if not allocates:
        options |= _uncounted(numba)
    with _cache_of(package_of(function.__module__), numba.config):
        # Without a cache, if neither the package's folder nor a home is writable.
        try:
            compiled: _Function = numba.njit(cache=True, error_model="numpy", **options)(function)
        except RuntimeError:
            compiled = numba.njit(error_model="numpy", **options)(function)
    _compiled.append(compiled)
    return compiled


def load_compiled() -> None:
    """Load all that the cache has of functions under `jit`, so that forks of this process need not load it."""
    for function in _compiled:
        with suppress(Exception):  # numba documents no way to list them
            cache, codegen = function._cache, function.targetctx.codegen()
            for key in cache._cache_file._load_index():
                if key == cache._index_key(key[0], codegen):  # not of another processor
                    function.compile(key[0])


def jit_part(function: _Function) -> _Function:
    """Mark `function` as a part of functions of `jit_whole`; in Python it stays as it is.

    Compiled, it has no entry from Python and no cache of its own, which are a third of the time of compiling. It
    makes no arrays. Its callers contain its code: a call would copy the fields of all its arrays.
    """
    _parts.add(function)
    return function


@functools.cache
def jit_whole(function: _Function) -> _Function:
    """The compiled form of `function` and of all its parts: `jit` of a function that makes no arrays.

    Raises:
        NumbaImportError: as `jit` does.
    """
    return jit(_with_compiled_parts(function, {}), allocates=False)


def _with_compiled_parts(function: Any, compiled: dict[Any, Any]) -> Any:
    """A copy of `function` that calls the compiled form of each of its parts."""
    names = dict(function.__globals__)
    for name in {step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL"}:
        part = names.get(name)
        if isinstance(part, types.FunctionType) and part in _parts:
            if part not in compiled:
                numba = load_numba()
                options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
                options |= _uncounted(numba)
                own = _with_compiled_parts(part, compiled)
                compiled[part] = numba.njit(error_model="numpy", **options)(own)
            names[name] = compiled[part]
    return types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)


def _uncounted(numba: Any) -> dict[str, Any]:
    """Options of a function that makes no arrays: numba then counts no references to those that it uses."""
    # Not documented, so that a later numba may lack it.
    return {"_nrt": False} if hasattr(numba.core.options.DefaultOptions, "_nrt") else {}


def compiler_is_loaded() -> bool:
    """Whether this process has imported numba, which takes a third of a second with the first compiled function."""
    return "numba" in sys.modules


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether `function`, which `jit` made, needs no compiling: this process or the cache has it."""
    if getattr(function, "signatures", ()):
        return True
    with suppress(OSError, AttributeError):
        cached = Path(function._cache.cache_path)  # type: ignore[attr-defined]
        return any(cached.glob(f"*.{function.__name__}-*.nbc"))
    return False


def load_numba() -> Any:
    """The module numba, which takes a third of a second to import.

    Raises:
        NumbaImportError: if it does not load, or may not compile.
    """
    try:
        import numba
    except ImportError as error:
        raise NumbaImportError(
            f"numba does not load: {printable(str(error))}; install it again: pip install --upgrade numba"
        ) from None
    if getattr(numba.config, "DISABLE_JIT", 0):
        raise NumbaImportError("NUMBA_DISABLE_JIT keeps numba from compiling, and istbench needs it to; unset it")
    return numba


@contextmanager
def _cache_of(package: str, config: Any) -> Iterator[None]:
    """Inside, numba caches in a folder with a digest of the sources of `package` in its name.

    By default, numba compiles a function again after a change of its own file, but not of files that it calls.
    """
    # Not numba's own setting: it may come from a file of the working directory, which may be a results folder.
    before = os.environ.get("NUMBA_CACHE_DIR", "")
    folder = f"compiled-{package}-{sources_digest(package)}"
    config.CACHE_DIR = str((Path(before) if before else _cache()) / folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


def _cache() -> Path:
    """The cache folder: beside the sources of a checkout, else in the user's cache.

    Not beside an installed package: pip would leave the folder, and it would hide a checkout installed later.
    """
    beside = Path(__file__).parents[1] / "__pycache__"
    users = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    installed = not {"site-packages", "dist-packages"}.isdisjoint(beside.parts)
    writable = os.access(beside if beside.exists() else beside.parent, os.W_OK)
    return beside if writable and not installed else users / "istbench"


def package_of(module: str) -> str:
    """The package of istbench with `module`, for example "cluster"."""
    return module.split(".")[1]
