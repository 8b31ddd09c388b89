"""The bus bandwidth of an all-reduce among all nodes, as nccl-tests counts it, by the fabric of a run."""

import math
import statistics
import time

import torch
from torch import Tensor

from istbench.fabric import Fabric
from istbench.launch.hosts.bus_bandwidth import BusBandwidth

_LEAST, _MOST = 1 << 20, 1 << 28  # bytes of the tensor
_TIMES = 5  # all-reduces in the seconds given
_NAME = "measuring"


def bus_bandwidth(fabric: Fabric, seconds: float) -> BusBandwidth:
    """Measure for about `seconds`, with a tensor as large as this takes. Every rank must call this."""
    fabric.look_at_distance()
    tensor = _tensor(fabric, _LEAST)
    _seconds(fabric, tensor)  # connects
    rate = _LEAST / _seconds(fabric, tensor)
    size = min(_MOST, max(_LEAST, 2 ** math.floor(math.log2(rate * seconds / _TIMES))))
    tensor = _tensor(fabric, size)
    took = [_seconds(fabric, tensor) for _ in range(_TIMES)]
    mean = (fabric.world_size + 1) / 2
    return BusBandwidth(
        backend="nccl" if torch.distributed.get_backend() == "nccl" else "gloo",
        nodes=fabric.world_size,
        bytes=size,
        seconds=statistics.median(took),
        right=bool(torch.all((tensor - mean).abs() <= 1e-3 * mean)),
    )


def _tensor(fabric: Fabric, size: int) -> Tensor:
    """A tensor of `size` bytes, whose mean over nodes no node has before, but for a middle one."""
    return torch.full((size // 4,), float(fabric.rank + 1), device=fabric.device)


def _seconds(fabric: Fabric, tensor: Tensor) -> float:
    fabric.barrier(_NAME)
    began = time.perf_counter()
    fabric.all_reduce_mean(tensor, _NAME)
    if fabric.device.type == "cuda":
        torch.cuda.synchronize(fabric.device)
    return fabric.maximum(time.perf_counter() - began)
