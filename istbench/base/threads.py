"""A thread beside a block, and the result of a thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


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


def answer_by(work: Callable[[], T], answer: "Future[T]") -> None:
    """Give `answer` the result of `work`, or the error that it raises, of any kind.

    Run it in a daemon thread, which does not keep a process from ending as those of an executor do.
    """
    try:
        answer.set_result(work())
    except BaseException as error:
        answer.set_exception(error)
