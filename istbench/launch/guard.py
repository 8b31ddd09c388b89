"""What surrounds a worker in its process: signals, an orphan watch, and a last word when it fails."""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from istbench.errors import UserError
from istbench.fabric import FabricError
from istbench.launch.failures import failure_path
from istbench.launch.place import Place

_AFTER_THE_CAUSE_S = 1.0


def guarded(target: Callable[..., None], args: tuple[object, ...], logs: str, launcher: int, place: Place) -> None:
    """Run `target(*args)` as one worker. A failure is written to `logs` before the process ends.

    `launcher` is the launching process's id: when it is gone, so is this worker. Ctrl-C reaches every process of
    a terminal; the launcher alone decides what it means. `place` is where the worker goes first.
    """
    place.enter(int(os.environ["RANK"]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(launcher,), daemon=True).start()
    try:
        target(*args)
    except Exception as error:
        _write_failure(Path(logs), error)
        traceback.print_exc()
        sys.stderr.flush()
        if isinstance(error, FabricError):
            # A peer's death is seen here first; the agent must see the peer before it sees this process end.
            time.sleep(_AFTER_THE_CAUSE_S)
        # Skips the process group's own farewell, which would wait for peers that may be gone.
        os._exit(1)


def _end_with(launcher: int) -> None:
    while True:
        time.sleep(1)
        try:
            os.kill(launcher, 0)
        except OSError:
            os._exit(1)


def _write_failure(logs: Path, error: Exception) -> None:
    kind = "user" if isinstance(error, UserError) else "fabric" if isinstance(error, FabricError) else "error"
    rank = int(os.environ.get("RANK", 0))
    text = str(error) if kind != "error" else f"{type(error).__name__}: {error}"
    try:
        failure_path(logs, rank).write_text(json.dumps({"kind": kind, "rank": rank, "message": text}))
    except OSError as problem:
        print(f"could not write to {logs}: {problem}", file=sys.stderr)
