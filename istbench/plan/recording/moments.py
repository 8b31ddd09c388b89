"""Moments inside a step: of the wall clock on a processor, of the current stream on a GPU."""

import time
from typing import Any, Protocol

import torch


class Moments(Protocol):
    """Takes moments, and tells the seconds between two of them later."""

    def now(self) -> Any:
        """This moment."""

    def seconds(self, first: Any, last: Any) -> float:
        """Seconds from `first` to `last`. Call it after training."""


class HostMoments:
    """The wall clock. A script may use several threads, or wait for its data: both belong to its step."""

    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, first: float, last: float) -> float:
        return last - first


class CudaMoments:
    """Events in the current stream of a GPU: they make no kernel wait."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3


def moments_on(device: torch.device) -> Moments:
    """Moments of computing on `device`."""
    return CudaMoments() if device.type == "cuda" else HostMoments()
