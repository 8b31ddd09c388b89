"""Work for several threads whose results are wanted in order, with few of them in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(threads: int, work: Callable[[T], R], items: Iterable[T], ahead: int = 2) -> Iterator[R]:
    """`work` of every one of `items`, in their order, by so many threads, each at most `ahead` items ahead."""
    left = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[R]] = deque(pool.submit(work, item) for item in islice(left, threads * ahead))
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(work, item) for item in islice(left, 1))
                yield result
        finally:
            for future in waiting:
                future.cancel()
