"""What a worker leaves behind when it fails, for the launching process to tell the cause by."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from istbench.errors import RunFailed, UserError
from istbench.fabric import FabricError
from istbench.launch.failures import last_word_path

_AFTER_THE_CAUSE_S = 1.0
_KINDS = {"user": UserError, "run": RunFailed, "fabric": FabricError}


def with_last_word(target: Callable[..., None], args: tuple[object, ...], logs: Path) -> None:
    """Run `target(*args)` as the worker that RANK names. Where it fails, says so in `logs` and ends the process."""
    try:
        target(*args)
    except Exception as error:
        _write(logs, error)
        traceback.print_exc()
        sys.stderr.flush()
        if isinstance(error, FabricError):
            # A peer's death is seen here first; the launcher must see the peer before it sees this process end.
            time.sleep(_AFTER_THE_CAUSE_S)
        # Skips the process group's own farewell, which would wait for peers that may be gone.
        os._exit(1)


def _write(logs: Path, error: Exception) -> None:
    kind = next((kind for kind, of in _KINDS.items() if isinstance(error, of)), "error")
    text = str(error) if kind != "error" else f"{type(error).__name__}: {error}"
    path = last_word_path(logs, int(os.environ["RANK"]))
    try:
        path.write_text(json.dumps({"kind": kind, "message": text}))
    except OSError as problem:
        print(f"could not write {path}: {problem}", file=sys.stderr)
