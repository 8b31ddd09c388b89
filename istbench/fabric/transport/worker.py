"""A thread that runs tasks, the most urgent first."""

import threading
from collections.abc import Callable, Iterable

from istbench.fabric.transport.urgent_first import UrgentFirst


class Worker:
    """Runs tasks one after the other; what one raises goes to `failed` and ends the thread."""

    def __init__(self, name: str, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._tasks: UrgentFirst[Callable[[], None]] = UrgentFirst()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, tasks: Iterable[tuple[float, Callable[[], None]]]) -> None:
        """Queue (order, task) pairs; the lowest order runs first."""
        self._tasks.put(tasks)

    def close(self) -> None:
        """Run what is queued and end."""
        self._tasks.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._run_one():
                pass
        except Exception as error:
            self._failed(error)

    def _run_one(self) -> bool:
        task = self._tasks.take()
        if task is None:
            return False
        task()
        return True
