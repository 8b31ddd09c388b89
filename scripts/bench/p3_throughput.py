"""Samples a second of ddp, parameter_server and p3 on fully connected networks, as a markdown table.

The methods take turns in the same processes, a few steps each, so that a machine whose speed drifts slows all of
them; ratios to ddp are taken turn by turn. A turn is on the clock until the last step's exchange is complete, which
counts one step's communication that training would hide; make turns long. Inputs are random: nothing is learnt.

Alone, it starts its nodes on this machine's loopback interface, or in a lab's namespaces behind links of
`--bandwidth`. Started once a node with RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT in the environment, as torchrun does, it joins those: on a real or shaped network.
"""

import argparse
import json
import os
import statistics
import time
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from istbench.cluster.profile import parse_bandwidth
from istbench.config import build_options
from istbench.conformance.training import open_workload
from istbench.fabric import Fabric, connect
from istbench.methods.base import Method
from istbench.registry import load_method
from istbench.workloads.base import Batch, Workload
from istbench.workloads.speech import Speech, SpeechOptions
from istbench.workloads.speech_data.features import FEATURES
from istbench.workloads.speech_data.words import WORDS

METHODS = ("ddp", "parameter_server", "p3")


class RandomInputs(Speech):
    """The speech network on random inputs: needs no data."""

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Any features and words, as many as `indices`."""
        features = torch.randn(len(indices), FEATURES, generator=generator)
        return features, torch.randint(len(WORDS), (len(indices),), generator=generator)


def network(layers: int, hidden: int, speech: bool) -> Workload:
    """The speech network with `layers` weight matrices, or as many of `hidden` x `hidden` and a small output."""
    if speech:
        return RandomInputs(SpeechOptions(layers=layers, hidden=hidden))
    return open_workload("toy", {"features": hidden, "hidden": hidden, "layers": layers, "samples": 4096})


def measure(fabric: Fabric, model_of: Any, size: int, turns: int, steps: int, own: dict[str, Any]) -> Any:
    """Seconds of every turn by method, the slowest node's."""
    workload = network(*model_of)
    batch = workload.train_batch(torch.arange(size), torch.Generator().manual_seed(fabric.rank))
    methods = {}
    for name in METHODS:
        kind = load_method(name)
        method = kind(build_options(kind.Options, own if name == "p3" else {}, name, {"lr": 1e-4}))
        with torch.device("meta"):
            model = workload.build_model()
        method.setup(model, workload, fabric)
        turn(fabric, method, batch, 2)
        methods[name] = method
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for number in range(turns):
        for name in METHODS[number % 3 :] + METHODS[: number % 3]:
            seconds[name].append(turn(fabric, methods[name], batch, steps))
    return seconds


def turn(fabric: Fabric, method: Method, batch: Batch, steps: int) -> float:
    """Seconds of `steps` steps, the slowest node's."""
    fabric.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        method.step(batch)
    method.drain()
    return fabric.maximum(time.perf_counter() - started)


def report(seconds: dict[str, list[float]], samples: int, steps: int) -> None:
    """Print the table."""
    print("| method | ms a step | samples/s | to ddp, median [min-max] | to parameter_server |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, times in seconds.items():
        step = statistics.median(times) / steps
        ratios = [_ratio(seconds[other], times) for other in ("ddp", "parameter_server")]
        print(f"| {name} | {1000 * step:.1f} | {samples / step:.0f} | {ratios[0]} | {ratios[1]} |")


def _ratio(reference: list[float], times: list[float]) -> str:
    ratios = [theirs / ours for theirs, ours in zip(reference, times, strict=True)]
    return f"{statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]"


def main() -> None:
    """Measure and print, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--model", choices=("speech", "mlp"), default="speech", help="mlp: layers of one width")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=128, help="of a node")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10, help="steps a turn")
    parser.add_argument("--bandwidth", type=parse_bandwidth, help="of a lab's links, such as 1gbit; needs root")
    parser.add_argument("--p3", type=json.loads, default={}, metavar="JSON", help="options of p3")
    arguments = parser.parse_args()
    model_of = (arguments.layers, arguments.hidden, arguments.model == "speech")
    what = (model_of, arguments.batch_size, arguments.turns, arguments.steps, arguments.p3)
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        with closing(connect()) as fabric:
            rank, nodes, seconds = fabric.rank, fabric.world_size, measure(fabric, *what)
    else:
        from istbench.conformance.processes import on_nodes
        from istbench.launch.lab import Lab

        rank, nodes = 0, arguments.nodes
        place = Lab(nodes=nodes, bandwidth=arguments.bandwidth) if arguments.bandwidth else None
        seconds = on_nodes(measure, nodes, *what, timeout_s=300.0, place=place)[0]
    if rank == 0:
        report(seconds, nodes * arguments.batch_size, arguments.steps)


if __name__ == "__main__":
    main()
