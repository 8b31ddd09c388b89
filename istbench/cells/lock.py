"""A run directory that one istbench at a time writes."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from istbench.errors import UserError
from istbench.results.store import RunDirectory


@contextlib.contextmanager
def alone(run: RunDirectory) -> Iterator[None]:
    """Have `run` for oneself inside; the system frees the lock of a killed process.

    Raises:
        UserError: where another istbench has it, or it cannot be written.
    """
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        folder = os.open(run.path, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot write {run.path}: {error.strerror}; choose another --out") from None
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another istbench is running {run.path.name} in {run.path}; wait for it") from None
        yield
    finally:
        os.close(folder)
