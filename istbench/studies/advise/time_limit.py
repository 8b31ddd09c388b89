"""A time limit on training, by the signal of Ctrl-C: the run stops with a checkpoint, and resumes later."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from istbench.base.interrupts import interrupt


class TimeUp(Exception):  # noqa: N818  (a name like KeyboardInterrupt)
    """The time was up before the end of a run."""


@contextmanager
def at_most(seconds: float, *, stopping_s: float) -> Iterator[None]:
    """Inside, the main thread gets SIGINT after `seconds`, and once more `stopping_s` later. Call it from there.

    If no seconds are left, the first signal comes at once. An import of that moment ends before the block does. The
    command handles SIGINT also where a shell started it in the background (`istbench.base.interrupts`).

    The first signal asks workers to stop with a checkpoint, the second one ends them (`processes.launcher`).

    Raises:
        TimeUp: in place of the KeyboardInterrupt of these signals.
    """
    main, rang, over = threading.main_thread().ident, threading.Event(), threading.Event()
    assert main is not None

    def ring() -> None:
        for after in (max(0.0, seconds), stopping_s):
            if over.wait(after):
                return
            rang.set()
            interrupt(main)

    bell = threading.Thread(target=ring, name="time limit", daemon=True)
    try:
        try:
            bell.start()  # without seconds left, the signal may come before this call returns
            yield
        finally:
            over.set()
            if bell.is_alive():
                bell.join()
    except KeyboardInterrupt:
        if rang.is_set():
            raise TimeUp from None
        raise
