"""The speed of a machine, measured: its matrix products and its memory; and the size of this memory."""

import mmap
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional

from istbench.base.machine import memory_bytes
from istbench.cluster.speed import Speed
from istbench.node.effort import EFFORT
from istbench.node.step_work import USUAL_SHAPE, USUAL_SHAPES

_ROW = 128
_TIMES = 5
_QUEUED = 8  # calls that a GPU finds ready one after the other, as in training


def device_memory(device: torch.device) -> int:
    """Bytes of memory of `device`: a GPU's own, else those of this machine."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else memory_bytes()


class MemoryArrays:
    """Arrays beyond the caches, to measure the speed of memory. They take 96 MiB until they are deleted.

    On a CPU this is memory to be shared with processes, which `PeakMemory` does not count.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        own = torch.Generator(device).manual_seed(0)  # leaves the random numbers of training alone
        self._all = _ones(3, EFFORT.array, device)
        self._rows = self._all.view(-1, _ROW)
        self._numbers = torch.randint(len(self._rows), (EFFORT.gathered,), device=device, generator=own)
        self._found = _ones(EFFORT.gathered, _ROW, device)

    def stream_gb_per_s(self) -> float:
        """GB/s of adding two arrays into a third, read and written in order."""
        one, other, total = self._all
        size = 1e-9 * self._all.nbytes
        return _rate(lambda: torch.add(one, other, out=total), size, self._device, first=self._device.type == "cpu")

    def gather_gb_per_s(self) -> float:
        """GB/s of copying rows of 512 bytes in random order, read and written."""
        size = 1e-9 * 2 * self._found.nbytes
        return _rate(lambda: torch.index_select(self._rows, 0, self._numbers, out=self._found), size, self._device)


def _ones(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.ones(rows, columns, device=device, dtype=torch.float32)
    values = torch.frombuffer(mmap.mmap(-1, 4 * rows * columns), dtype=torch.float32)
    return values.view(rows, columns).fill_(1.0)


def matmul_gflops(rows: int, inner: int, columns: int, device: torch.device) -> float:
    """GFLOP/s of a float32 product [rows, inner] x [inner, columns] on `device`."""
    own = torch.Generator(device).manual_seed(0)
    left = torch.randn(rows, inner, device=device, generator=own, dtype=torch.float32)
    right = torch.randn(inner, columns, device=device, generator=own, dtype=torch.float32)
    return _rate(lambda: torch.mm(left, right), 2e-9 * rows * inner * columns, device)


def product_speeds() -> tuple[float, float] | None:
    """GFLOP/s of a float32 product of `USUAL_SHAPE` on the CPU: as torch computes it, and by oneDNN.

    Measured in turns; None for a torch without oneDNN.

    On x86 processors torch computes float32 products of training by MKL or another BLAS, never by oneDNN.
    """
    if not torch.backends.mkldnn.is_available():
        return None
    rows, inner, columns = USUAL_SHAPE
    cpu, own = torch.device("cpu"), torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(size, inner, generator=own, dtype=torch.float32).to_mkldnn() for size in (rows, columns)
    )
    amount = 2e-9 * rows * inner * columns
    taken = [
        (matmul_gflops(*USUAL_SHAPE, cpu), _rate(lambda: functional.linear(left, right), amount, cpu))
        for _ in range(_TIMES)
    ]
    by_torch, by_onednn = (statistics.median(figures) for figures in zip(*taken, strict=True))
    return by_torch, by_onednn


def speed_here(device: torch.device) -> Speed:
    """The speed of a node on `device` with this process's threads: medians of measurements in turn.

    Matrix products are those of a layer of a thousand units, on a GPU of two thousand.
    """
    arrays = MemoryArrays(device)
    shape = USUAL_SHAPES[device.type]
    measures = (lambda: matmul_gflops(*shape, device), arrays.stream_gb_per_s, arrays.gather_gb_per_s)
    taken = [[measure() for measure in measures] for _ in range(_TIMES)]
    gflops, stream, gather = (statistics.median(figures) for figures in zip(*taken, strict=True))
    if device.type != "cpu":
        return Speed(gflops=gflops, memory_gb_per_s=stream)
    return Speed(
        gflops=gflops, memory_gb_per_s=stream, gather_gb_per_s=gather, core_gb_per_s=_of_one_core(arrays, stream)
    )


def _of_one_core(arrays: MemoryArrays, stream: float) -> float:
    """GB/s of memory by one thread, where all threads together have `stream`."""
    threads = torch.get_num_threads()
    if threads == 1:
        return stream
    torch.set_num_threads(1)
    try:
        return statistics.median(arrays.stream_gb_per_s() for _ in range(_TIMES))
    finally:
        torch.set_num_threads(threads)


def _rate(kernel: Callable[[], object], amount: float, device: torch.device, *, first: bool = False) -> float:
    """`amount` over the seconds of a `kernel`, the median of 3 to 20 calls.

    first: whether the first call counts, since no cache and no library makes it slower than the next ones.

    They are timed by this thread's CPU time, as compute in traces is; on a GPU, by the wall clock around a
    synchronised queue of calls.
    """
    clock, calls = (time.perf_counter, _QUEUED) if device.type == "cuda" else (time.thread_time, 1)
    if not first:
        kernel()
    seconds: list[float] = []
    while len(seconds) < 3 or (len(seconds) < 20 and sum(seconds) < EFFORT.kernel_s):
        finish_kernels(device)
        started = clock()
        for _ in range(calls):
            kernel()
        finish_kernels(device)
        seconds.append((clock() - started) / calls)
    return amount / max(1e-9, statistics.median(seconds))


def finish_kernels(device: torch.device) -> None:
    """Wait until the kernels of `device` have finished, if it is a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
