"""A time limit on training, by the signal of Ctrl-C: the run stops with a checkpoint, and resumes later."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TimeUp(Exception):  # noqa: N818  (a name like KeyboardInterrupt)
    """The time was up before the end of a run."""


@contextmanager
def at_most(seconds: float, *, stopping_s: float) -> Iterator[None]:
    """Inside, the main thread gets SIGINT after `seconds`, and once more `stopping_s` later. Call it from there.

    The first signal asks workers to stop with a checkpoint, the second one ends them (`processes.launcher`).

    Raises:
        TimeUp: in place of the KeyboardInterrupt of these signals.
    """
    main, rang = threading.main_thread().ident, threading.Event()
    assert main is not None

    def ring() -> None:
        rang.set()
        signal.pthread_kill(main, signal.SIGINT)

    timers = [threading.Timer(max(0.0, after), ring) for after in (seconds, seconds + stopping_s)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()
                timer.join()
    except KeyboardInterrupt:
        if rang.is_set():
            raise TimeUp from None
        raise
