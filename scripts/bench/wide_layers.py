"""The rate of a local step over that of its bare matrix products, with updates in the backward pass and after it.

The step is that of an `ist` subnet: a hidden layer of `--hidden` units under 4,096 features, minibatches of 128,
plain SGD, one thread. "Products" are the matrix products of a step alone, into memory that is there. The three take
turns in one process, which asks for pages of 2 MB as workers do.

    python scripts/bench/wide_layers.py --turns 9
    python scripts/bench/wide_layers.py --hidden 64 --turns 1 --steps 1    # to try it
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from spread import spread
from torch import nn
from torch.nn import functional as F

from istbench.methods.wide_layers import WideLayers

SWITCH = "THP_MEM_ALLOC_ENABLE"
BATCH, FEATURES, CLASSES, RATE = 128, 4096, 35, 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", default="512,1024,2048,4096", help="units of the subnet's hidden layer")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=8, help="of a turn; its figure is their median")
    arguments = parser.parse_args()
    if SWITCH not in os.environ:  # torch reads it when it starts
        command = [sys.executable, __file__, *sys.argv[1:]]
        ended = subprocess.run(
            command, env={**os.environ, SWITCH: "1"}, check=True, stdout=subprocess.PIPE, text=True
        )
        print(ended.stdout, end="")
        return
    torch.set_num_threads(1)
    print("| units | products, ms | step, ms: after | inside | products / step: after | inside | after / inside |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for hidden in map(int, arguments.hidden.split(",")):
        ways = (products_of(hidden), step_of(hidden, inside=False), step_of(hidden, inside=True))
        taken = [[median_ms(way, arguments.steps) for way in ways] for _ in range(arguments.turns)]
        bare, after, inside = zip(*taken, strict=True)
        ratios = (pairs(bare, after), pairs(bare, inside), pairs(after, inside))
        times = " | ".join(spread(each, 1) for each in (bare, after, inside))
        print(f"| {hidden} | {times} | {' | '.join(spread(each, 2) for each in ratios)} |", flush=True)


def pairs(some: tuple[float, ...], others: tuple[float, ...]) -> list[float]:
    return [one / other for one, other in zip(some, others, strict=True)]


def step_of(hidden: int, *, inside: bool) -> Callable[[], None]:
    """A local step, with updates of wide layers inside the backward pass or after it."""
    model = nn.Sequential(
        nn.Linear(FEATURES, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(),
        nn.Linear(hidden, CLASSES, bias=False), nn.BatchNorm1d(CLASSES, affine=False),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    layers = WideLayers(model, optimizer, plain=inside)
    inputs, labels = torch.randn(BATCH, FEATURES), torch.randint(CLASSES, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        with layers:
            loss = F.cross_entropy(model(inputs), labels)
        layers.backward(loss)
        optimizer.step()

    return step


def products_of(hidden: int) -> Callable[[], None]:
    """The products of a step: of each layer forward and for its weight, of the second for its inputs."""
    first, last = torch.randn(hidden, FEATURES), torch.randn(CLASSES, hidden)
    inputs = torch.randn(BATCH, FEATURES)
    units, of_units, of_classes = (torch.randn(BATCH, width) for width in (hidden, hidden, CLASSES))
    hidden_out, classes_out = torch.empty(BATCH, hidden), torch.empty(BATCH, CLASSES)
    first_out, last_out = torch.empty_like(first), torch.empty_like(last)

    def products() -> None:
        torch.mm(inputs, first.t(), out=hidden_out)
        torch.mm(units, last.t(), out=classes_out)
        torch.mm(of_classes.t(), units, out=last_out)
        torch.mm(of_classes, last, out=hidden_out)
        torch.mm(of_units.t(), inputs, out=first_out)

    return products


def median_ms(work: Callable[[], None], times: int) -> float:
    """The median CPU milliseconds of `work`, after a warm-up."""
    seconds = []
    for _ in range(times + 2):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return 1e3 * statistics.median(seconds[2:])


if __name__ == "__main__":
    main()
