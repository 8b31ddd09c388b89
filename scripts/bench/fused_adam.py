"""Milliseconds of torch's default and fused Adam steps on this machine's CPU, as a markdown table.

Each step updates all numbers of a parameter from its gradient and two moments. The two kinds take turns.

    python scripts/bench/fused_adam.py --sizes 1000000,20000000 --threads 1,2
    python scripts/bench/fused_adam.py --sizes 1000 --turns 2    # to try it
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from istbench.methods.optimizer import OptimizerOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100000,1000000,20000000,85000000")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    print("| numbers | threads | default, ms | fused, ms | default / fused, median [range] of the turns |")
    print("| --- | --- | --- | --- | --- |")
    for size in map(int, arguments.sizes.split(",")):
        default = stepping(size, lambda tensors: torch.optim.Adam(tensors, lr=0.001))
        fused = stepping(size, OptimizerOptions(optimizer="adam", lr=0.001).build)
        for threads in map(int, arguments.threads.split(",")):
            torch.set_num_threads(threads)
            turns = [(seconds(default), seconds(fused)) for _ in range(arguments.turns + 1)][1:]
            plain, one = (statistics.median(column) * 1e3 for column in zip(*turns, strict=True))
            ratios = sorted(a / b for a, b in turns)
            spread = f"{statistics.median(ratios):.1f} [{ratios[0]:.1f}-{ratios[-1]:.1f}]"
            print(f"| {size:,} | {threads} | {plain:.2f} | {one:.2f} | {spread} |", flush=True)


def stepping(size: int, build: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Callable[[], object]:
    """A function that makes one step over a parameter of this size."""
    parameter = nn.Parameter(torch.randn(size))
    parameter.grad = torch.randn(size)
    return build([parameter]).step


def seconds(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
