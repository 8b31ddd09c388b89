"""Timestamps of computing: of a clock on a processor, of the current stream on a GPU."""

import time
from collections.abc import Callable
from typing import Any

import torch


class Timestamps:
    """Takes timestamps of computing on `device`, and computes the seconds between two later.

    The events in the stream of a GPU make no kernel wait.

    clock: of a processor. The wall clock by default: a script may use several threads, or wait for its data, and
        both belong to its step.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self.cuda, self._device, self._clock = device.type == "cuda", device, clock

    def now(self) -> Any:
        if not self.cuda:
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))  # the current device may be another one
        return event

    def seconds(self, first: Any, last: Any) -> float:
        """Seconds from `first` to `last`. On a GPU, this waits until the stream has passed `last`."""
        if not self.cuda:
            return float(last - first)
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3
