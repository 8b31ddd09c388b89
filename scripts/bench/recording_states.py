"""One cell recorded in six states of the machine and replayed on m5.2xlarge, as markdown tables.

The replays should agree: they are of the same cell. "Before" scales the same recordings by matrix products alone.
Run it on a machine without other load; it takes some eight minutes on two cores.

    python scripts/bench/recording_states.py --workloads toy --states 1    # to try it
"""

import argparse
import dataclasses
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cells import run_cell

from istbench.cluster.clock import cluster_time
from istbench.cluster.profile import load_profile
from istbench.cluster.trace import Trace
from istbench.cluster.trace_file import load_trace

CELLS = {
    "toy": ["--steps", 40],
    "speech": ["--workload-set", "hidden=1024", "--steps", 60],
    "cifar10": ["--workload-set", "width=16", "--batch-size", 64, "--channels-last", "--steps", 30],
    "amazon670k": ["--workload-set", "hidden=128", "--steps", 30],
}
STATES = (  # nodes, threads of each, busy processes
    ("idle", 2, 1, 0),
    ("beside one busy process", 2, 1, 1),
    ("beside two busy processes", 2, 1, 2),
    ("one node, one thread", 1, 1, 0),
    ("one node, two threads", 1, 2, 0),
    ("one node, one thread, beside one", 1, 1, 1),
)
# Convolutions and normalisation, which use memory and cores as training does.
BUSY = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU())
images = torch.randn(32, 32, 32, 32)
while True:
    model(images).sum().backward()
"""


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Inside, `count` other processes compute."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    time.sleep(3.0 if count else 0.0)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def recorded(cell: Sequence[object], workload: str, nodes: int, threads: int) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        place = ["--nodes", nodes, "--threads", threads, "--set", "local_steps=5"]
        run_cell("--workload", workload, "--method", "local_sgd", *place, *cell, out=Path(folder))
        (found,) = Path(folder).rglob("trace.npz")
        return load_trace(found)


def step_ms(trace: Trace, *, memory: bool) -> tuple[float, float, float]:
    """Milliseconds of computing a step on m5.2xlarge, and their range."""
    profile = load_profile("m5.2xlarge")
    if not memory:
        profile = dataclasses.replace(profile, memory_gb_per_s=None)
    time = cluster_time(trace, profile, [trace.steps])
    middle = 1e3 * time.compute * time.seconds[0] / trace.steps
    return middle, middle * (time.low or math.nan), middle * (time.high or math.nan)


def spread(values: Sequence[float]) -> str:
    """The largest over the smallest, and the largest distance from the median, in words."""
    middle = statistics.median(values)
    far = max(abs(value / middle - 1) for value in values)
    return f"{max(values) / min(values):.2f} times apart, {100 * far:.0f} % from the median at most"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="speech,cifar10,amazon670k", help=f"of {', '.join(CELLS)}")
    parser.add_argument("--states", type=int, default=len(STATES), help="only the first of them")
    arguments = parser.parse_args()
    for workload in arguments.workloads.split(","):
        print(f"\n{workload}, local_sgd: ms of computing a local step\n")
        print("| state | recorded | GFLOP/s | GB/s | before: replayed | after: replayed | range |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        before, after, inside = [], [], []
        for name, nodes, threads, others in STATES[: arguments.states]:
            with busy(others):
                trace = recorded(CELLS[workload], workload, nodes, threads)
            old, (new, low, high) = step_ms(trace, memory=False)[0], step_ms(trace, memory=True)
            before.append(old)
            after.append(new)
            inside.append((low, high))
            print(
                f"| {name} | {1e3 * trace.computing_s / trace.steps:.1f} | {trace.gflops:.0f} | "
                f"{trace.meta.memory_gb_per_s:.1f} | {old:.2f} | {new:.2f} | {low:.2f}-{high:.2f} |",
                flush=True,
            )
        middle = statistics.median(after)
        covered = sum(low <= middle <= high for low, high in inside)
        print(f"\nBefore: {spread(before)}. After: {spread(after)}; the range of {covered} holds the median.")


if __name__ == "__main__":
    main()
