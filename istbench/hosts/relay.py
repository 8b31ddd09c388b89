"""What a process of a run that was asked for from another host says, beside training: files in a folder, there."""

import json
import os
import time
from pathlib import Path

from istbench.files import writing_whole

FOLDER = "ISTBENCH_ASKED"
SAID, CELL, GO, FAILED = "said", "cell", "go", "failed"
_POLL_S = 0.05


def folder() -> Path | None:
    """Where to say it; None where nobody on another host asked."""
    path = os.environ.get(FOLDER)
    return Path(path) if path else None


def speak_apart() -> None:
    """Have this process's standard error where it is passed on, apart from what torchrun says."""
    where = folder()
    if where is not None and os.environ.get("RANK") == "0":
        said = os.open(where / SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(said, 2)
        os.close(said)


def await_go(cell: str) -> None:
    """Say which cell it is, and wait until what is known of it has been brought here."""
    where = folder()
    if where is None:
        return
    _write(where / CELL, cell)
    while not (where / GO).exists():
        time.sleep(_POLL_S)


def tell_failure(message: str, status: int) -> bool:
    """Say why all ended, and with what status; False where nobody asked."""
    where = folder()
    if where is None:
        return False
    _write(where / FAILED, json.dumps({"message": message, "status": status}))
    return True


def _write(path: Path, text: str) -> None:
    with writing_whole(path) as file:
        file.write(text.encode())
