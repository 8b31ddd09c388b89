"""What a user sees on stderr while runs are replayed."""

import atexit
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

_PATIENCE_S = 1.5


@contextmanager
def replaying() -> Iterator[None]:
    """Replays happen inside: where they take long, one line says why."""
    # Searching what the simulation leaves behind for garbage, as Python does at its end, takes a third of a second.
    atexit.register(gc.freeze)
    line = "replaying; on a machine that never did, this compiles the simulation first, for 10 to 30 seconds"
    timer = threading.Timer(_PATIENCE_S, partial(print, line, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
