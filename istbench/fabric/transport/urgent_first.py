"""A queue between threads that gives out its most urgent item first."""

import heapq
import threading
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class UrgentFirst(Generic[T]):
    """Items come out by their order, lowest first, and in the order they went in where that is the same."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._heap: list[tuple[Any, int, T]] = []
        self._count = 0
        self._waiting = self._closed = False

    def put(self, items: Iterable[tuple[Any, T]]) -> None:
        """Add (order, item) pairs, all at once: no one takes any before all are in."""
        with self._changed:
            for order, item in items:
                heapq.heappush(self._heap, (order, self._count, item))
                self._count += 1
            if self._waiting:
                self._changed.notify()

    def take(self) -> T | None:
        """The most urgent item, waiting for one; None once the queue is closed and empty. For one thread only."""
        with self._changed:
            while not self._heap and not self._closed:
                self._waiting = True
                self._changed.wait()
                self._waiting = False
            return heapq.heappop(self._heap)[2] if self._heap else None

    def close(self) -> None:
        """Let `take` give out what is left, then None."""
        with self._changed:
            self._closed = True
            self._changed.notify()
