"""The cost of recording the trace, per step, as a markdown table.

The script measures it in two ways. The recorder's own time is the time of one event, measured alone, times the
events of a step. Turns with and without a recorder, in the same processes on the same weights, differ mostly by
noise on a shared machine. A run records only some rounds after its first one. Here the recorded turns record every
step, so a whole training costs far less. The network has the sizes of the speech network, on random inputs.

    python scripts/bench/trace_cost.py --hidden 16 --turns 2 --methods p3    # to try it
"""

import argparse
import statistics
import time
from typing import Any

import torch

from istbench.fabric import Fabric
from istbench.fabric.recorder import Recorder
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.base import Method
from istbench.studies.conformance.training import open_workload, set_up
from istbench.workloads.base import Batch

METHODS = ("ddp", "local_sgd", "ist", "parameter_server", "p3")
STEPS = 20  # of a turn, after a step that ends the first round: a recorder records these


def measure(fabric: Fabric, name: str, hidden: int, turns: int) -> Any:
    """Seconds of every pair of turns, with and without a recorder, on the slowest node; and events per step."""
    workload = open_workload("toy", {"features": 4096, "hidden": hidden, "samples": 2048})
    batch = workload.train_batch(torch.arange(128), torch.Generator())
    options = {"local_steps": 1} if name in ("local_sgd", "ist") else {}
    method = set_up(fabric, workload, name, options)
    pairs, events = [], 0
    for number in range(-1, turns):
        seconds = {}
        for recorded in (True, False) if number % 2 else (False, True):
            fabric.recorder.__init__(fabric.device)  # type: ignore[misc]  # to record again
            fabric.recorder.finished = not recorded
            seconds[recorded] = turn(fabric, method, batch)
            events = max(events, len(fabric.recorder.events()))
        if number >= 0:  # the first pair warms up
            pairs.append([seconds[True], seconds[False]])
    return pairs, events / STEPS


def event_seconds() -> float:
    """The seconds of the recorder for one event: the median of many."""
    times = []
    for _ in range(50):
        recorder = Recorder(torch.device("cpu"))
        _end_round(recorder)  # recording begins
        started = time.perf_counter()
        for _ in range(500):
            with recorder.waiting(recorder.post("send", 1000, (1,))):
                pass
        seconds = time.perf_counter() - started
        _end_round(recorder)
        times.append(seconds / len(recorder.events()))
    return statistics.median(times)


def _end_round(recorder: Recorder) -> None:
    recorder.mark("round")
    recorder.mark("step")


def turn(fabric: Fabric, method: Method, batch: Batch) -> float:
    """Seconds of `STEPS` steps, on the slowest node."""
    for number in range(1 + STEPS):
        if number == 1:
            fabric.barrier()
            started = time.perf_counter()
        method.step(batch)
        fabric.recorder.mark("step")
    method.drain()
    return fabric.maximum(time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    arguments = parser.parse_args()
    each = event_seconds()
    print(f"An event: {1e6 * each:.2f} us.\n")
    print("| method | events per step | ms per step | the recorder's own | recorded / not, median [quartiles] |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in arguments.methods:
        pairs, events = on_nodes(
            measure, arguments.nodes, name, arguments.hidden, arguments.turns, timeout_s=300.0
        )[0]
        ratios = [recorded / not_recorded for recorded, not_recorded in pairs]
        step = statistics.median(not_recorded for _, not_recorded in pairs) / STEPS
        low, middle, high = statistics.quantiles(ratios, n=4)
        own = 100 * events * each / step
        spread = f"{middle:.3f} [{low:.3f}-{high:.3f}]"
        print(f"| {name} | {events:.0f} | {1000 * step:.1f} | {own:.2f} % | {spread} |", flush=True)


if __name__ == "__main__":
    main()
