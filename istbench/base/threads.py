"""A thread beside a block."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def thread_beside(work: Callable[[], None], over: threading.Event, name: str | None = None) -> Iterator[None]:
    """Inside, a thread does `work`, which ends soon after `over` is set. The end of the block sets it and waits."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
