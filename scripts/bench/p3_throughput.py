"""Samples per second of ddp, parameter_server and p3 on fully connected networks, as a markdown table.

The methods take turns in the same processes, some steps each. So a machine whose speed drifts slows all of them,
and the script takes ratios turn by turn. The clock of a turn starts after a step of the turn. So every step on it
waits for the exchange of the step before, as in training. Computing alone takes turns too: a node's plain forward
and backward pass. Inputs are random, so the network learns nothing.

By default the script starts its nodes on this machine's loopback interface, or in a lab's namespaces behind links
of `--bandwidth`. With RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, as under torchrun, it is
one node and joins the others, on a real or shaped network.

    python scripts/bench/p3_throughput.py --widths 16,8,4 --batch-size 4 --turns 1 --steps 1    # to try it
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from spread import spread
from torch import Tensor, nn

from istbench.base.machine import RUN_KEY
from istbench.base.units import parse_bandwidth
from istbench.fabric import Fabric, connect
from istbench.studies.conformance.training import set_up
from istbench.workloads.base import Batch, Workload
from istbench.workloads.toy import Toy, ToyOptions

METHODS = ("ddp", "parameter_server", "p3")
COMPUTING = "computing alone"
_SAMPLES = 2048


class FullyConnected(Toy):
    """Linear layers of the given widths (inputs and outputs included) with ReLU between, on random inputs."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__(ToyOptions(features=widths[0], classes=widths[-1], samples=_SAMPLES))
        self.widths = widths

    def build_model(self) -> nn.Sequential:
        """Build the network on the current device."""
        layers = [part for sizes in pairwise(self.widths) for part in (nn.Linear(*sizes), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Random features and classes for `indices`."""
        features = torch.randn(len(indices), self.widths[0], generator=generator)
        return features, torch.randint(self.widths[-1], (len(indices),), generator=generator)


def measure(fabric: Fabric, widths: Sequence[int], size: int, turns: int, steps: int, own: dict[str, Any]) -> Any:
    """Seconds of every turn by method, on the slowest node."""
    workload = FullyConnected(widths)
    workload.open(workload.prepare(None, Path(), lambda *_: None))
    batch = workload.train_batch(torch.arange(size), torch.Generator().manual_seed(fabric.rank))
    alone = workload.build_model()
    parts: dict[str, tuple[Callable[[], object], Callable[[], None]]] = {
        COMPUTING: (partial(compute, workload, alone, batch), lambda: None)
    }
    for name in METHODS:
        method = set_up(fabric, workload, name, {"lr": 1e-4, **(own if name == "p3" else {})})
        parts[name] = partial(method.step, batch), method.drain
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    names = list(parts)
    for number in range(-1, turns):  # the first to warm up
        for name in names[number % len(names) :] + names[: number % len(names)]:
            took = turn(fabric, *parts[name], 1 if number < 0 else steps)
            if number >= 0:
                seconds[name].append(took)
    return seconds


def compute(workload: Workload, model: nn.Module, batch: Batch) -> None:
    """A forward and a backward pass."""
    model.zero_grad()
    workload.loss(model, batch).backward()


def turn(fabric: Fabric, step: Callable[[], object], drain: Callable[[], None], steps: int) -> float:
    """Seconds of `steps` steps after another step, on the slowest node."""
    fabric.barrier()
    step()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    seconds = time.perf_counter() - started
    drain()
    return fabric.maximum(seconds)


def report(seconds: dict[str, list[float]], samples: int, steps: int) -> None:
    """Print the table. `samples`: of all nodes in a step."""
    print("| method | ms per step | samples/s | to ddp, median [min-max] | to parameter_server |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, times in seconds.items():
        step = statistics.median(times) / steps
        ratios = [_ratio(seconds[other], times) for other in ("ddp", "parameter_server")]
        print(f"| {name} | {1000 * step:.1f} | {samples / step:.0f} | {ratios[0]} | {ratios[1]} |")


def numbers(text: str) -> list[int]:
    """The numbers in a text such as "4096,2048,35"."""
    return [int(part) for part in text.split(",")]


def _ratio(reference: list[float], times: list[float]) -> str:
    return spread([theirs / ours for theirs, ours in zip(reference, times, strict=True)], 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument(
        "--widths",
        type=numbers,
        default=[1536] * 9,
        metavar="N,N,...",
        help="widths of inputs, hidden layers and outputs",
    )
    parser.add_argument("--batch-size", type=int, default=512, help="samples of a node in a step")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument(
        "--bandwidth", type=parse_bandwidth, help="bandwidth of a lab's links, such as 1gbit; needs root"
    )
    parser.add_argument("--p3", type=json.loads, default={}, metavar="JSON", help="options of p3")
    arguments = parser.parse_args()
    what = (arguments.widths, arguments.batch_size, arguments.turns, arguments.steps, arguments.p3)
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        os.environ.setdefault(RUN_KEY, "00")  # which istbench sets for workers of its own
        with closing(connect()) as fabric:
            rank, nodes, seconds = fabric.rank, fabric.world_size, measure(fabric, *what)
    else:
        from istbench.launch.lab.network import ShapedNetwork
        from istbench.launch.processes.local import LocalLauncher
        from istbench.launch.processes.on_nodes import on_nodes
        from istbench.launch.processes.place import ThisMachine

        rank, nodes = 0, arguments.nodes
        place = ShapedNetwork(nodes=nodes, bandwidth=arguments.bandwidth) if arguments.bandwidth else ThisMachine()
        seconds = on_nodes(measure, nodes, *what, timeout_s=300.0, launcher=LocalLauncher(place=place))[0]
    if rank == 0:
        report(seconds, nodes * arguments.batch_size, arguments.steps)


if __name__ == "__main__":
    main()
