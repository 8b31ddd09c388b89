"""What recording the trace costs a step, as a markdown table: turns with and without it, in the same processes.

A run records some rounds after its first one, and not the rest; here every step of the recorded turns is recorded,
so a whole training pays far less. The network is of the speech network's sizes, on random inputs.
"""

import argparse
import statistics
import time
from typing import Any

import torch

from istbench.conformance.processes import on_nodes
from istbench.conformance.training import open_workload, set_up
from istbench.fabric import Fabric
from istbench.fabric.recorder import Recorder
from istbench.methods.base import Method
from istbench.workloads.base import Batch

METHODS = ("ddp", "local_sgd", "ist", "parameter_server", "p3")
STEPS = 20  # of a turn, after one that ends the first round: what a recorder records


def measure(fabric: Fabric, name: str, hidden: int, turns: int) -> Any:
    """Seconds of every pair of turns, recorded and not, the slowest node's; and events a step."""
    workload = open_workload("toy", {"features": 4096, "hidden": hidden, "samples": 2048})
    batch = workload.train_batch(torch.arange(128), torch.Generator())
    options = {"local_steps": 1} if name in ("local_sgd", "ist") else {}
    silent, recording = Recorder(fabric.device), Recorder(fabric.device)
    silent.finished = True
    methods = []
    for recorder in (recording, silent):
        fabric.recorder = recorder
        methods.append((recorder, set_up(fabric, workload, name, options)))
    pairs = []
    for number in range(-1, turns):
        recording.__init__(fabric.device)  # type: ignore[misc]  # to record again
        seconds = {}
        for which in (0, 1) if number % 2 else (1, 0):
            fabric.recorder, method = methods[which]
            seconds[which] = turn(fabric, method, batch)
        if number >= 0:  # the first pair warms up
            pairs.append([seconds[0], seconds[1]])
    return pairs, len(recording.events()) / STEPS


def turn(fabric: Fabric, method: Method, batch: Batch) -> float:
    """Seconds of `STEPS` steps, the slowest node's."""
    for number in range(1 + STEPS):
        if number == 1:
            fabric.barrier()
            started = time.perf_counter()
        method.step(batch)
        fabric.recorder.mark("step")
    method.drain()
    return fabric.maximum(time.perf_counter() - started)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    print("| method | events a step | ms a step | recorded / not, median [min-max] |\n| --- | ---: | ---: | ---: |")
    for name in METHODS:
        pairs, events = on_nodes(
            measure, arguments.nodes, name, arguments.hidden, arguments.turns, timeout_s=300.0
        )[0]
        ratios = [recorded / not_recorded for recorded, not_recorded in pairs]
        step = 1000 * statistics.median(not_recorded for _, not_recorded in pairs) / STEPS
        spread = f"{statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]"
        print(f"| {name} | {events:.0f} | {step:.1f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
