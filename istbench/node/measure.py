"""Measurements of one rank: the train clock, peak memory, and the speed of a matrix product."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from istbench.fabric import Fabric
from istbench.results.header import NodeSeconds

_CALIBRATION_S = 0.1


class TrainClock:
    """Seconds of training on this rank since `start`. Both ends wait until the GPU's kernels are finished.

    Args:
        fabric: its recorder knows how long this rank waited.
        dilation: in a lab, the factor by which everything runs slower than on the machine it stands for.
    """

    def __init__(self, fabric: Fabric, dilation: float = 1.0) -> None:
        self._fabric, self._device = fabric, fabric.device
        self._dilation = dilation
        self._started = self._waited_before = self._elapsed = 0.0

    def start(self) -> None:
        """Start a segment."""
        _finish_kernels(self._device)
        self._waited_before = self._fabric.recorder.waited_s()
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        """Seconds of the segment so far."""
        _finish_kernels(self._device)
        self._elapsed = (time.perf_counter() - self._started) / self._dilation
        return self._elapsed

    def computing(self) -> float:
        """The part of the last `elapsed` in which this rank did not wait for others."""
        waited = self._fabric.recorder.waited_s() - self._waited_before
        return max(0.0, self._elapsed - waited / self._dilation)


def node_seconds(train_s: float, computing_s: Sequence[float], hosts: Sequence[str]) -> tuple[NodeSeconds, ...]:
    """Split `train_s` of each rank into seconds of computing and of waiting."""
    return tuple(
        NodeSeconds(rank=rank, host=host, computing_s=computing, waiting_s=max(0.0, train_s - computing))
        for rank, (computing, host) in enumerate(zip(computing_s, hosts, strict=False))
    )


class PeakMemory:
    """Peak memory of training on this rank, in bytes: model, optimizer, activations and buffers.

    On a GPU, the peak of the allocator. On Linux, the growth of the process's anonymous memory since this object
    was made, at its peak. That leaves out the interpreter and memory-mapped data, which all ranks of a machine
    share. On other systems `peak` stays None.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._base = _status("RssAnon")
        self.peak: int | None = None

    def start(self) -> None:
        """Reset the peak: memory of evaluating and assembling does not count as training."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._base is not None:
            Path("/proc/self/clear_refs").write_text("5")

    def stop(self) -> None:
        """Raise `peak` to the peak since `start`."""
        if self._device.type == "cuda":
            now: int | None = torch.cuda.max_memory_allocated(self._device)
        else:
            high, mapped, shared = _status("VmHWM"), _status("RssFile"), _status("RssShmem")
            if self._base is None or high is None or mapped is None or shared is None:
                return
            now = high - mapped - shared - self._base
        if now is not None:
            self.peak = max(self.peak or 0, now)


def matmul_gflops(rows: int, inner: int, columns: int, device: torch.device) -> float:
    """GFLOP/s of a float32 product [rows, inner] x [inner, columns] on `device`, the median of 3 to 20 products.

    It is timed by this thread's CPU time, as compute in traces is; on a GPU, by the wall clock around a
    synchronised product.
    """
    own = torch.Generator(device).manual_seed(0)  # leaves the random numbers of training alone
    left = torch.randn(rows, inner, device=device, generator=own)
    right = torch.randn(inner, columns, device=device, generator=own)
    clock = time.perf_counter if device.type == "cuda" else time.thread_time
    torch.mm(left, right)
    seconds: list[float] = []
    while len(seconds) < 3 or (len(seconds) < 20 and sum(seconds) < _CALIBRATION_S):
        _finish_kernels(device)
        started = clock()
        torch.mm(left, right)
        _finish_kernels(device)
        seconds.append(clock() - started)
    return 2e-9 * rows * inner * columns / max(1e-9, statistics.median(seconds))


def _finish_kernels(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
