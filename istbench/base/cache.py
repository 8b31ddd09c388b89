"""The cache directory: prepared data, and what pictures were drawn from. The sources that name a cache."""

import functools
import hashlib
import os
from pathlib import Path

from istbench.base.decode import utf8_path
from istbench.base.errors import UserError


def cache_directory() -> Path:
    """`$ISTBENCH_CACHE`, else `$XDG_CACHE_HOME/istbench`, else `~/.cache/istbench`.

    Raises:
        UserError: if the name is empty or not UTF-8, or there is no home directory.
    """
    own = os.environ.get("ISTBENCH_CACHE")
    if own is not None:
        return utf8_path(own, "ISTBENCH_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return utf8_path(base, "XDG_CACHE_HOME") / "istbench"
    try:
        return utf8_path(str(Path.home()), "HOME") / ".cache" / "istbench"
    except RuntimeError:
        raise UserError("no home directory for prepared data; name a directory with ISTBENCH_CACHE") from None


@functools.cache
def sources_digest(package: str) -> str:
    """A short digest of all sources of `package`."""
    here = Path(__file__).parents[1] / package
    digest = hashlib.sha256()
    for path in sorted(here.rglob("*.py")):
        digest.update(f"{path.relative_to(here)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
