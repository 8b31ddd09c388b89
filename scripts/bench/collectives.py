"""Seconds of all-gathers and reduce-scatters in a lab over those of their bytes, by way, as a markdown table.

A way is gloo's own collective (its all-to-all and a sum for the reduce-scatter), gloo's asynchronous messages in
turns, or the fabric. The ways take turns in the same processes. The table divides seconds by the seconds of the
bytes that a node sends, on links that carry nothing but payload. CPU seconds are of all threads of a process.

    python scripts/bench/collectives.py --nodes 2 --bandwidth 1gbit --size 40000 --turns 1    # to try it, as root
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from spread import spread
from torch import Tensor

from istbench.base.units import parse_bandwidth
from istbench.cluster.profile import TCP_PAYLOAD, bandwidth_text
from istbench.fabric import Fabric
from istbench.launch.lab.network import ShapedNetwork
from istbench.launch.processes.local import LocalLauncher
from istbench.launch.processes.on_nodes import on_nodes

_COMPUTING = 0.7  # beside an all-gather, of the seconds of its bytes
_COMPUTED_S = 5e-3


class Gloo:
    """gloo's own collectives."""

    def __init__(self, fabric: Fabric) -> None:
        self._nodes = fabric.world_size

    def all_gather_async(self, parts: Tensor, mine: Tensor, name: str) -> Any:
        """Like the fabric's."""
        return dist.all_gather_into_tensor(parts, mine, async_op=True)

    def reduce_scatter_mean_async(self, mine: Tensor, parts: Tensor, name: str) -> Any:
        """Like the fabric's."""
        arrived = parts.new_empty(self._nodes, mine.numel())
        work = dist.all_to_all_single(arrived.view(-1), parts, async_op=True)
        return Pending(work.wait, lambda: torch.sum(arrived, 0, out=mine).div_(self._nodes))


class Pending:
    """A handle whose `wait` calls each of `parts`."""

    def __init__(self, *parts: Callable[[], object]) -> None:
        self._parts = parts

    def wait(self) -> None:
        for part in self._parts:
            part()


class Messages:
    """gloo's asynchronous messages, one turn after another on a thread. Two nodes have one turn and no thread."""

    def __init__(self, fabric: Fabric) -> None:
        self._rank, self._nodes = fabric.rank, fabric.world_size
        self._pool = ThreadPoolExecutor(1)
        self._begun = 0

    def all_gather_async(self, parts: Tensor, mine: Tensor, name: str) -> Any:
        """Like the fabric's."""
        of_rank = parts.view(self._nodes, -1)
        of_rank[self._rank].copy_(mine)
        return self._in_turns([mine] * self._nodes, list(of_rank), lambda: None)

    def reduce_scatter_mean_async(self, mine: Tensor, parts: Tensor, name: str) -> Any:
        """Like the fabric's."""
        for_rank, arrived = parts.view(self._nodes, -1), parts.new_empty(self._nodes, mine.numel())
        arrived[self._rank].copy_(for_rank[self._rank])
        finish = partial(self._mean, mine, arrived)
        return self._in_turns(list(for_rank), list(arrived), finish)

    def _mean(self, mine: Tensor, arrived: Tensor) -> None:
        torch.sum(arrived, 0, out=mine).div_(self._nodes)

    def _in_turns(self, leaving: Sequence[Tensor], arriving: Sequence[Tensor], finish: Callable[[], object]) -> Any:
        self._begun += 1
        turn = partial(self._turn, leaving, arriving, self._begun)
        if self._nodes == 2:
            return Pending(*(work.wait for work in turn(1)), finish)

        def turns() -> None:
            for distance in range(1, self._nodes):
                for work in turn(distance):
                    work.wait()

        return Pending(self._pool.submit(turns).result, finish)

    def _turn(self, leaving: Sequence[Tensor], arriving: Sequence[Tensor], tag: int, distance: int) -> list[Any]:
        to, source = (self._rank + distance) % self._nodes, (self._rank - distance) % self._nodes
        # The receive first: gloo sends only to a posted receive.
        return [dist.irecv(arriving[source], source, tag=tag), dist.isend(leaving[to], to, tag=tag)]


WAYS: dict[str, Callable[[Fabric], Any]] = {"gloo": Gloo, "messages": Messages, "fabric": lambda fabric: fabric}
Operation = Callable[[Any, Sequence[Tensor]], list[Any]]


def gathering(way: Any, tensors: Sequence[Tensor]) -> list[Any]:
    mine, parts, *_ = tensors
    return [way.all_gather_async(parts, mine, "gathering")]


def scattering(way: Any, tensors: Sequence[Tensor]) -> list[Any]:
    """Start a reduce-scatter."""
    _, _, mine, parts = tensors
    return [way.reduce_scatter_mean_async(mine, parts, "averaging")]


def both(way: Any, tensors: Sequence[Tensor]) -> list[Any]:
    return scattering(way, tensors) + gathering(way, tensors)


OPERATIONS: dict[str, tuple[Operation, int]] = {
    "all-gather": (gathering, 1),
    "reduce-scatter": (scattering, 1),
    "both at once": (both, 2),
}


def measure(
    fabric: Fabric, size: int, small: int, computing: float, turns: int
) -> dict[str, dict[str, list[list[float]]]]:
    """By operation and way: wall and CPU seconds of each turn on the slowest node.

    "beside computing": of a large all-gather while the node computes for `computing` seconds. "small": of a small
    all-gather after computing.
    """
    torch.manual_seed(fabric.rank)
    nodes = fabric.world_size
    count = max(1, size // (4 * (nodes - 1)))
    tensors = [torch.randn(count), torch.empty(nodes * count), torch.empty(count), torch.randn(nodes * count)]
    few = max(1, small // 4)
    little = [torch.randn(few), torch.empty(nodes * few), torch.empty(few), torch.randn(nodes * few)]
    ways = {name: make(fabric) for name, make in WAYS.items()}
    found: dict[str, dict[str, list[list[float]]]] = {}
    for number in range(-1, turns):  # the first to warm up
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            way = ways[name]
            timed = {what: once(fabric, way, start, tensors) for what, (start, _) in OPERATIONS.items()}
            timed["beside computing"] = once(fabric, way, gathering, tensors, computing)
            timed["small"] = smalls(fabric, way, little)
            if number >= 0:
                for what, own in timed.items():
                    found.setdefault(what, {}).setdefault(name, []).append(own)
    return found


def once(
    fabric: Fabric, way: Any, start: Operation, tensors: Sequence[Tensor], computing: float = 0.0
) -> list[float]:
    """Wall and CPU seconds of one operation on the slowest node, less the CPU seconds of `computing`."""
    fabric.barrier()
    cpu, wall = time.process_time(), time.perf_counter()
    works = start(way, tensors)
    compute(computing)
    for work in works:
        work.wait()
    took = [time.perf_counter() - wall, time.process_time() - cpu - computing]
    return [fabric.maximum(value) for value in took]


def smalls(fabric: Fabric, way: Any, tensors: Sequence[Tensor], count: int = 30) -> list[float]:
    """Wall and CPU seconds of one of `count` small all-gathers, each after computing."""
    wall = cpu = 0.0
    for _ in range(count):
        compute(_COMPUTED_S)
        fabric.barrier()
        began, used = time.perf_counter(), time.process_time()
        for work in gathering(way, tensors):
            work.wait()
        wall += time.perf_counter() - began
        cpu += time.process_time() - used
    return [fabric.maximum(value) / count for value in (wall, cpu)]


def compute(seconds: float) -> None:
    """Multiply matrices for `seconds` CPU seconds of this thread."""
    until, matrix = time.thread_time() + seconds, torch.ones(256, 256)
    while time.thread_time() < until:
        torch.mm(matrix, matrix)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="2,4", help="numbers of nodes")
    parser.add_argument("--bandwidth", default="100mbit,1gbit", help="bandwidths of the links; needs root")
    parser.add_argument("--size", type=int, default=4_000_000, help="bytes that a node sends in one operation")
    parser.add_argument("--small", type=int, default=3_000, help="bytes of a small part")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    print("| bandwidth | nodes | operation | way | of bytes / bandwidth, median [min-max] | ms | CPU ms |")
    print("| ---: | ---: | :--- | :--- | ---: | ---: | ---: |")
    for bandwidth in map(parse_bandwidth, arguments.bandwidth.split(",")):
        for nodes in map(int, arguments.nodes.split(",")):
            place = ShapedNetwork(nodes=nodes, bandwidth=bandwidth)
            # Less than the bytes take: the sum of both is no bound.
            computing = _COMPUTING * arguments.size * 8 / (bandwidth * TCP_PAYLOAD)
            what = (arguments.size, arguments.small, computing, arguments.turns)
            found = on_nodes(measure, nodes, *what, timeout_s=300.0, launcher=LocalLauncher(place=place))[0]
            for operation, by_way in found.items():
                sent = arguments.small * (nodes - 1) if operation == "small" else arguments.size
                bound = OPERATIONS.get(operation, (None, 1))[1] * sent * 8 / (bandwidth * TCP_PAYLOAD)
                for way, times in by_way.items():
                    wall = [own / place.lab.dilation for own, _ in times]
                    cpu = statistics.median(used for _, used in times)
                    print(
                        f"| {bandwidth_text(bandwidth)} | {nodes} | {operation} | {way} "
                        f"| {spread([seconds / bound for seconds in wall], 3)} "
                        f"| {1e3 * statistics.median(wall):.2f} | {1e3 * cpu:.1f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
