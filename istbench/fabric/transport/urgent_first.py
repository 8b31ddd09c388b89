"""A queue between threads with the most urgent item first, and a thread that runs tasks from one."""

import heapq
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class UrgentFirst(Generic[T]):
    """Items leave the queue by rising order. Items of the same order leave as they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._heap: list[tuple[Any, int, T]] = []
        self._count = 0
        self._closed = False

    def put(self, items: Iterable[tuple[Any, T]]) -> None:
        """Add (order, item) pairs, all before a reader can take the first."""
        with self._changed:
            for order, item in items:
                heapq.heappush(self._heap, (order, self._count, item))
                self._count += 1
            self._changed.notify()

    def take(self) -> T | None:
        """Wait for the most urgent item; None if the queue is closed and empty. Only one thread may call this."""
        with self._changed:
            self._changed.wait_for(lambda: self._heap or self._closed)
            return heapq.heappop(self._heap)[2] if self._heap else None

    def close(self) -> None:
        """Close the queue: `take` returns the remaining items, then None."""
        with self._changed:
            self._closed = True
            self._changed.notify()


class WorkerThread:
    """A thread that runs tasks one by one. If a task raises, the error goes to `failed` and the thread ends."""

    def __init__(self, name: str, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._tasks: UrgentFirst[Callable[[], None]] = UrgentFirst()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, tasks: Iterable[tuple[float, Callable[[], None]]]) -> None:
        """Queue (order, task) pairs; the lowest order runs first."""
        self._tasks.put(tasks)

    def close(self) -> None:
        """Run the queued tasks, then end the thread."""
        self._tasks.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            for task in iter(self._tasks.take, None):
                task()
                del task  # with the tensors in it, while the queue is empty
        except Exception as error:
            self._failed(error)
