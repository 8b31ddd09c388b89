"""Training batches that a thread makes before their steps."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from istbench.fabric.recorder import Recorder
from istbench.workloads.base import Batch


class PrefetchedBatches:
    """The batches of the steps from `first` to `last` (exclusive), in order; at most `ahead` wait for their step.

    One thread makes them, one after the other, beside the training thread, and the trace records it as work. An
    error of `make` is raised where its batch is taken.
    """

    def __init__(self, make: Callable[[int], Batch], first: int, last: int, ahead: int, recorder: Recorder) -> None:
        self._make, self._next, self._last, self._ahead = make, first, last, ahead
        self._recorder = recorder
        self._waiting: deque[tuple[int, int, Future[Batch]]] = deque()
        self._maker = ThreadPoolExecutor(1, "batches") if ahead else None

    def take(self, step: int) -> Batch:
        """The batch of `step`. Steps must be taken in order."""
        if self._maker is None:
            return self._make(step)
        while len(self._waiting) <= self._ahead and self._next < self._last:
            work = self._recorder.post("work", 0)
            self._waiting.append((self._next, work, self._maker.submit(self._timed, self._next, work)))
            self._next += 1
        made, work, batch = self._waiting.popleft()
        if made != step:
            raise RuntimeError(f"batches are taken in order: step {made} is next, not {step}")
        with self._recorder.waiting(work, for_nodes=False):
            return batch.result()

    def _timed(self, step: int, work: int) -> Batch:
        started = time.thread_time()
        batch = self._make(step)
        self._recorder.worked(work, time.thread_time() - started)
        return batch

    def settle(self) -> None:
        """Wait for the batches in work, so that none is made while the train clock stands still."""
        wait([batch for _, _, batch in self._waiting])

    def close(self) -> None:
        """Stop making batches."""
        if self._maker is not None:
            self._maker.shutdown(cancel_futures=True)
