"""Seconds per round of IST, ordinary and streaming, on really shaped links, as a markdown table.

The variants take turns in the same processes, some rounds each. So a machine whose speed drifts slows all of them,
and the script takes ratios turn by turn. The network has the sizes of the speech network, on random inputs. Units
travel over the transport of P3, as in a run, or in gloo's asynchronous messages. Both must end with the same
weights. The CPU seconds of all threads of a node stand beside: streaming only adds work, and a line says where it
took less than the ordinary exchange.

    python scripts/bench/streaming_lab.py --bandwidth 1gbit --hidden 16 --turns 1    # to try it, as root
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from over_messages import OverMessages
from spread import spread

from istbench.base.units import parse_bandwidth
from istbench.cluster.profile import bandwidth_text
from istbench.fabric import Fabric
from istbench.launch.lab.network import ShapedNetwork
from istbench.launch.processes.local import LocalLauncher
from istbench.launch.processes.on_nodes import on_nodes
from istbench.studies.conformance.training import assembled, batches_of, open_workload, set_up

_SIZES = {"features": 4096, "layers": 2, "classes": 35, "batch_norm": True, "samples": 2048}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "ordinary": ("ist", {}),
    "streaming": ("streaming_ist", {}),
    "streaming, flight_steps=4": ("streaming_ist", {"flight_steps": 4}),
}
MESSAGES = ", in messages"


def measure(
    fabric: Fabric, hidden: int, size: int, local_steps: int, turns: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds and CPU seconds per round of every turn by variant, on the slowest node."""
    workload = open_workload("toy", {**_SIZES, "hidden": hidden})
    workload.batch_size = size  # type: ignore[misc]  # of this one alone
    over: Any = OverMessages(fabric)
    methods = {}
    for name, (method_name, way) in WAYS.items():
        options = {"local_steps": local_steps, **way}
        methods[name] = set_up(fabric, workload, method_name, options)
        if method_name == "streaming_ist":
            methods[name + MESSAGES] = set_up(over, workload, method_name, options)
    ways = list(methods)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(-1, turns):  # the first to warm up
        for name in ways[number % len(ways) :] + ways[: number % len(ways)]:
            method = methods[name]
            batches = batches_of(fabric, workload, method)
            batch = workload.train_batch(batches.indices(0), torch.Generator().manual_seed(fabric.rank))
            fabric.barrier()
            started, cpu = time.perf_counter(), time.process_time()
            for _ in range(local_steps * (1 if number < 0 else rounds)):
                method.step(batch)
            method.drain()
            took = fabric.maximum(time.perf_counter() - started)
            computed = fabric.maximum(time.process_time() - cpu)
            if number >= 0:
                seconds[name].append((took / rounds, computed / rounds))
    for name, method in methods.items():
        one, other = assembled(fabric, method), assembled(fabric, methods[name.removesuffix(MESSAGES)])
        if one is not None and other is not None:
            torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=128, help="samples of a node in a step")
    parser.add_argument("--local-steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2, help="a turn")
    parser.add_argument("--bandwidth", default="1gbit,300mbit", help="bandwidths of the links; needs root")
    arguments = parser.parse_args()
    what = (arguments.hidden, arguments.batch_size, arguments.local_steps, arguments.turns, arguments.rounds)
    print(
        "| bandwidth | ist | s per round | CPU s per round | of ordinary, median [min-max] "
        "| of the same over P3's transport |"
    )
    print("| :--- | :--- | ---: | ---: | ---: | ---: |")
    doubts = []
    for bandwidth in map(parse_bandwidth, arguments.bandwidth.split(",")):
        place = ShapedNetwork(nodes=arguments.nodes, bandwidth=bandwidth)
        launcher = LocalLauncher(place=place)
        found = on_nodes(measure, arguments.nodes, *what, timeout_s=300.0, launcher=launcher)[0]
        seconds, cpu = (
            {name: [turn[which] for turn in turns] for name, turns in found.items()} for which in (0, 1)
        )
        for name, times in seconds.items():
            ratios = [ratio(times, seconds[other]) for other in ("ordinary", name.removesuffix(MESSAGES))]
            computed = statistics.median(cpu[name])
            print(
                f"| {bandwidth_text(bandwidth)} | {name} | {statistics.median(times):.3f} | {computed:.3f} "
                f"| {' | '.join(ratios)} |",
                flush=True,
            )
            if computed < statistics.median(cpu["ordinary"]):
                doubts.append(f"{name} at {bandwidth_text(bandwidth)}")
    if doubts:
        print(f"\nCareful: streaming only adds work, but took less CPU time than ordinary: {'; '.join(doubts)}.")


def ratio(times: Sequence[float], reference: Sequence[float]) -> str:
    """The ratio of `times` to `reference`, turn by turn: the median and the range."""
    return spread([own / other for own, other in zip(times, reference, strict=True)], 3)


if __name__ == "__main__":
    main()
