"""What a node measures of itself: the train clock and its peak memory."""

import time
from pathlib import Path

import torch


class TrainClock:
    """Seconds of training on this node: runs between `start` and `stop`, waiting for a GPU at both ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = 0.0

    def start(self) -> None:
        """Start a segment."""
        self._synchronise()
        self._started = time.perf_counter()

    def stop(self) -> float:
        """End the segment; returns its seconds."""
        self._synchronise()
        return time.perf_counter() - self._started

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class PeakMemory:
    """Peak memory of training on this node, in bytes: model, optimizer, activations and buffers.

    On a GPU, the allocator's own peak. On Linux, the peak of the process's anonymous memory above what it held
    when this object was made, that is, without the interpreter and without the memory-mapped data, which all
    nodes of a machine share. Elsewhere it stays None.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._base = _status("RssAnon")
        self.peak: int | None = None

    def start(self) -> None:
        """Forget peaks so far: what evaluating and assembling took is not training's."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._base is not None:
            Path("/proc/self/clear_refs").write_text("5")

    def stop(self) -> None:
        """Take the peak since `start` into `peak`."""
        if self._device.type == "cuda":
            now: int | None = torch.cuda.max_memory_allocated(self._device)
        else:
            high, mapped, shared = _status("VmHWM"), _status("RssFile"), _status("RssShmem")
            if self._base is None or high is None or mapped is None or shared is None:
                return
            now = high - mapped - shared - self._base
        if now is not None:
            self.peak = max(self.peak or 0, now)


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
