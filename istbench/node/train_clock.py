"""The train clock of one rank, and the seconds in which it computed and waited."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from istbench.fabric import Fabric
from istbench.node.machine_speed import finish_kernels


class TrainClock:
    """Seconds of training on this rank since `start`. Both ends wait until the GPU's kernels are finished.

    Args:
        fabric: its recorder knows how long this rank waited.
        dilation: in a lab, the factor by which everything runs slower than on the machine it stands for.
    """

    def __init__(self, fabric: Fabric, dilation: float = 1.0) -> None:
        self._fabric, self._device = fabric, fabric.device
        self.dilation = dilation
        self._started = self._waited_before = self._elapsed = 0.0

    def start(self) -> None:
        """Start a segment."""
        finish_kernels(self._device)
        self._waited_before = self._fabric.recorder.waits.seconds()
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        """Seconds of the segment so far."""
        finish_kernels(self._device)
        self._elapsed = self.passed()
        return self._elapsed

    def passed(self) -> float:
        """Seconds of the segment so far, without waiting for the GPU: kernels may still run."""
        return (time.perf_counter() - self._started) / self.dilation

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, the segment stands still."""
        finish_kernels(self._device)
        stopped = time.perf_counter()
        yield
        finish_kernels(self._device)
        self._started += time.perf_counter() - stopped

    def computing(self) -> float:
        """The part of the last `elapsed` in which this rank did not wait for others."""
        waited = self._fabric.recorder.waits.seconds() - self._waited_before
        return max(0.0, self._elapsed - waited / self.dilation)
