"""What a worker leaves behind when it fails, for the launching process to tell the cause by."""

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from istbench.errors import RunFailed, UserError
from istbench.fabric import FabricError
from istbench.plugin_code import plugin_line
from istbench.processes.failures import done_path, last_word_path

_AFTER_THE_CAUSE_S = 1.0
_KINDS = {"user": UserError, "run": RunFailed, "fabric": FabricError}


def with_last_word(target: Callable[..., None], args: tuple[object, ...], logs: Path) -> None:
    """Run `target(*args)` as the worker that RANK names, and leave a mark in `logs` that it is done.

    Where it fails, says so in `logs` and ends the process; where it ends the process itself, there is no mark.
    """
    try:
        target(*args)
        done_path(logs, int(os.environ["RANK"])).touch()
    except SystemExit as end:
        _leave(_status(end))
    except BaseException as error:
        _write(logs, error)
        traceback.print_exc()
        if isinstance(error, FabricError):
            # A peer's death is seen here first; the launcher must see the peer before it sees this process end.
            sys.stderr.flush()
            time.sleep(_AFTER_THE_CAUSE_S)
        _leave(1)


def _status(end: SystemExit) -> int:
    """The exit status that Python makes of it; what is no number is printed."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _leave(status: int) -> None:
    """End the process without the process group's own farewell, which would wait for peers that may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _lacks_memory(error: BaseException) -> bool:
    """Whether memory could not be had: torch says so of a GPU's by a type of its own, of others in words only."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "DefaultCPUAllocator" in str(error)


def _write(logs: Path, error: BaseException) -> None:
    kind = next((kind for kind, of in _KINDS.items() if isinstance(error, of)), "error")
    text = str(error) if kind != "error" else f"{type(error).__name__}: {error}".removesuffix(": ")
    if kind == "error" and _lacks_memory(error):
        asked = re.search(r"tried to allocate ([\d.]+ \w+)", text, re.IGNORECASE)
        kind, text = "memory", f" when it asked for {asked[1]} more" if asked else ""
    plugin = plugin_line(error) if kind == "error" else None
    if plugin is not None:
        kind, text = "plugin", plugin
    path = last_word_path(logs, int(os.environ["RANK"]))
    try:
        path.write_text(json.dumps({"kind": kind, "message": text}))
    except OSError as problem:
        print(f"could not write {path}: {problem}", file=sys.stderr)
