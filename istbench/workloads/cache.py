"""Where prepared data is kept between runs."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """`$ISTBENCH_CACHE`, else `$XDG_CACHE_HOME/istbench`, else `~/.cache/istbench`."""
    if own := os.environ.get("ISTBENCH_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "istbench"
