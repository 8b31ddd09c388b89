"""On a host: programs that measure it, or name cells without training, in a process that `remote_programs` starts.

`python -m istbench.launch.hosts.answer_program` prints JSON: with `gpus` the `HostGpus`, with
`speed SLOTS` a `MeasuredNode`, with `carrying` the `MessageCosts`, with `all_reduce DEVICE SECONDS` the
`BusBandwidth`, as the rank that the environment names, and with `names` the name of each cell of a JSON list of
requests on standard input, null for one that cannot run.
"""

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch import Tensor

from istbench.base.decode import convert, path_text
from istbench.base.machine import cores
from istbench.base.options.run import RunRequest
from istbench.fabric import Fabric, connect
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.hosts.remote_programs import LIMIT_S, BusBandwidth, HostGpus
from istbench.launch.processes.local import serve_store
from istbench.launch.processes.message_costs import measure_message_costs
from istbench.launch.torchrun.workers import route_to
from istbench.node.gpu_copies import broken_copies, here
from istbench.node.machine_speed import device_memory, speed_here

_LEAST, _MOST = 1 << 20, 1 << 28  # bytes of the tensor
_TIMES = 5  # all-reduces in the seconds given
_NAME = "measuring"


def bus_bandwidth(fabric: Fabric, seconds: float) -> BusBandwidth:
    """The bus bandwidth of an all-reduce among all nodes, as nccl-tests counts it, by the fabric of a run.

    Measures for about `seconds`, with a tensor as large as this takes. Every rank must call this.
    """
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


def _all_reduce(device: str, seconds: str) -> BusBandwidth:
    address, rank = os.environ["MASTER_ADDR"], int(os.environ["RANK"])
    route = route_to(address)
    route.enter(rank)
    # The store lives as long as this variable.
    _store = serve_store(replace(route, address=address), int(os.environ["MASTER_PORT"])) if rank == 0 else None
    with closing(connect(device=device, timeout_s=LIMIT_S / 2)) as fabric:
        return bus_bandwidth(fabric, float(seconds))


def _speed(slots: str) -> dict[str, Any]:
    share = cores() / int(slots)
    torch.set_num_threads(max(1, int(share)))
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    device = torch.device("cuda" if gpu else "cpu")
    memory = device_memory(device) / (1 if gpu else int(slots))
    return {**msgspec.to_builtins(speed_here(device)), "memory": memory, "cores": None if gpu else share}


def cell_name(request: Any) -> str | None:
    """The name of the cell of a `RunRequest` as plain values; None if it cannot run."""
    try:
        return prepare_cell(convert(request, RunRequest, path_text), lambda *_: None, here=1).cell
    except Exception:  # the run itself reports the error
        return None


_PROGRAMS: dict[str, Callable[..., object]] = {
    "gpus": lambda: HostGpus(count=len(here()), broken=broken_copies(here())),
    "all_reduce": _all_reduce,
    "speed": _speed,
    "carrying": lambda: measure_message_costs().all_reduce,
    "names": lambda: [cell_name(request) for request in json.load(sys.stdin)],
}

if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # for libraries and plug-ins that print
        json.dump(msgspec.to_builtins(_PROGRAMS[sys.argv[1]](*sys.argv[2:])), answers)
