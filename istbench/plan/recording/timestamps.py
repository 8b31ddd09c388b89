"""Timestamps inside a step: of the wall clock on a processor, of the current stream on a GPU."""

import time
from typing import Any, Protocol

import torch


class Timestamps(Protocol):
    """Takes timestamps, and computes the seconds between two later."""

    def now(self) -> Any:
        """The time now."""

    def seconds(self, first: Any, last: Any) -> float:
        """Seconds from `first` to `last`. Call it after training."""


class HostTimestamps:
    """The wall clock. A script may use several threads, or wait for its data: both belong to its step."""

    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, first: float, last: float) -> float:
        return last - first


class CudaTimestamps:
    """Events in the current stream of a GPU: they make no kernel wait."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3


def timestamps_on(device: torch.device) -> Timestamps:
    """The clock of computing on `device`."""
    return CudaTimestamps() if device.type == "cuda" else HostTimestamps()
