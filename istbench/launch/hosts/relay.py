"""Messages from a remote worker to the host that requested the run: files in a folder of the worker's host."""

import json
import os
import time
from pathlib import Path

from istbench.base.files import writing_whole

FOLDER = "ISTBENCH_RELAY"
SAID, CELL, GO, FAILED = "said", "cell", "go", "failed"
_POLL_S = 0.05


def folder() -> Path | None:
    """The folder for messages; None if no other host requested the run."""
    path = os.environ.get(FOLDER)
    return Path(path) if path else None


def speak_apart() -> None:
    """Write the standard error of rank 0 to a file that is passed on, apart from the output of torchrun."""
    where = folder()
    if where is not None and os.environ.get("RANK") == "0":
        said = os.open(where / SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(said, 2)
        os.close(said)


def await_go(cell: str) -> None:
    """Report the name of the cell, and wait until its earlier part has been copied here."""
    where = folder()
    if where is None:
        return
    _write(where / CELL, cell)
    while not (where / GO).exists():
        time.sleep(_POLL_S)


def tell_failure(message: str, status: int) -> bool:
    """Report the failure and its exit status; False if no other host requested the run."""
    where = folder()
    if where is None:
        return False
    _write(where / FAILED, json.dumps({"message": message, "status": status}))
    return True


def _write(path: Path, text: str) -> None:
    with writing_whole(path) as file:
        file.write(text.encode())
