"""Files that survive a crash."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Return once the content of file `path`, or the names in directory `path`, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
