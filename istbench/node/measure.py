"""Measurements of one rank: the train clock, peak memory, and the speeds of matrix products and memory."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from istbench.cluster.speed import Speed
from istbench.fabric import Fabric
from istbench.node.step_work import USUAL_SHAPE
from istbench.results.header import NodeSeconds

_CALIBRATION_S = 0.02
_ARRAY = 1 << 23  # float32 values: 32 MiB
_ROW, _GATHERED = 128, 1 << 14
_TIMES = 5


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
        _finish_kernels(self._device)
        self._waited_before = self._fabric.recorder.waited_s()
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        """Seconds of the segment so far."""
        _finish_kernels(self._device)
        self._elapsed = self.passed()
        return self._elapsed

    def passed(self) -> float:
        """Seconds of the segment so far, without waiting for the GPU: kernels may still run."""
        return (time.perf_counter() - self._started) / self.dilation

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, the segment stands still."""
        _finish_kernels(self._device)
        stopped = time.perf_counter()
        yield
        _finish_kernels(self._device)
        self._started += time.perf_counter() - stopped

    def computing(self) -> float:
        """The part of the last `elapsed` in which this rank did not wait for others."""
        waited = self._fabric.recorder.waited_s() - self._waited_before
        return max(0.0, self._elapsed - waited / self.dilation)


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


class MemoryArrays:
    """Arrays beyond the caches, to measure the speed of memory. They take 96 MiB until they are deleted."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        own = torch.Generator(device).manual_seed(0)  # leaves the random numbers of training alone
        self._all = torch.ones(3, _ARRAY, device=device)
        self._rows = self._all.view(-1, _ROW)
        self._numbers = torch.randint(len(self._rows), (_GATHERED,), device=device, generator=own)
        self._found = torch.ones(_GATHERED, _ROW, device=device)

    def stream_gb_per_s(self) -> float:
        """GB/s of adding two arrays into a third, read and written in order."""
        one, other, total = self._all
        return _rate(lambda: torch.add(one, other, out=total), 1e-9 * 4 * 3 * _ARRAY, self._device)

    def gather_gb_per_s(self) -> float:
        """GB/s of copying rows of 512 bytes in random order, read and written."""
        size = 1e-9 * 4 * 2 * _ROW * _GATHERED
        return _rate(lambda: torch.index_select(self._rows, 0, self._numbers, out=self._found), size, self._device)


def matmul_gflops(rows: int, inner: int, columns: int, device: torch.device) -> float:
    """GFLOP/s of a float32 product [rows, inner] x [inner, columns] on `device`."""
    own = torch.Generator(device).manual_seed(0)
    left = torch.randn(rows, inner, device=device, generator=own)
    right = torch.randn(inner, columns, device=device, generator=own)
    return _rate(lambda: torch.mm(left, right), 2e-9 * rows * inner * columns, device)


def speed_here(device: torch.device) -> Speed:
    """The speed of a node on `device` with this process's threads: medians of measurements in turn.

    Matrix products are those of a layer of a thousand units.
    """
    arrays = MemoryArrays(device)
    measures = (lambda: matmul_gflops(*USUAL_SHAPE, device), arrays.stream_gb_per_s, arrays.gather_gb_per_s)
    taken = [[measure() for measure in measures] for _ in range(_TIMES)]
    gflops, stream, gather = (statistics.median(figures) for figures in zip(*taken, strict=True))
    return Speed(gflops=gflops, memory_gb_per_s=stream, gather_gb_per_s=gather if device.type == "cpu" else None)


def _rate(kernel: Callable[[], object], amount: float, device: torch.device) -> float:
    """`amount` over the seconds of a `kernel`, the median of 3 to 20 calls.

    They are timed by this thread's CPU time, as compute in traces is; on a GPU, by the wall clock around a
    synchronised call.
    """
    clock = time.perf_counter if device.type == "cuda" else time.thread_time
    kernel()
    seconds: list[float] = []
    while len(seconds) < 3 or (len(seconds) < 20 and sum(seconds) < _CALIBRATION_S):
        _finish_kernels(device)
        started = clock()
        kernel()
        _finish_kernels(device)
        seconds.append(clock() - started)
    return amount / max(1e-9, statistics.median(seconds))


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
