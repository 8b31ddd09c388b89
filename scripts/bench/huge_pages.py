"""Milliseconds of a training step with pages of 4 kB and of 2 MB for large tensors, as a markdown table.

A gradient of a large layer is new memory in every step, and the system makes its pages. Processes without and with
THP_MEM_ALLOC_ENABLE, torch's switch to ask for pages of 2 MB, take turns. Each takes steps of an `ist` subnet, or
of the full network: a hidden layer of `--hidden` units under 4,096 features, minibatches of 128, plain SGD, one
thread. "Products" are the matrix products of a step alone, into memory that is there.

    python scripts/bench/huge_pages.py --turns 5
    python scripts/bench/huge_pages.py --hidden 64 --turns 1 --steps 1    # to try it
"""

import argparse
import json
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

SWITCH = "THP_MEM_ALLOC_ENABLE"
BATCH, FEATURES, CLASSES = 128, 4096, 35


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", default="1024,2048,4096", help="widths; on four nodes ist has 1,024 of 4,096")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="of a turn; its figure is their median")
    parser.add_argument("--one", action="store_true", help="take one turn, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(turn(int(arguments.hidden), arguments.steps)))
        return
    print("| hidden units | products, ms | step, 4 kB pages, ms | step, 2 MB pages, ms | 4 kB / 2 MB |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for hidden in arguments.hidden.split(","):
        small, huge, products = list[float](), list[float](), list[float]()
        for _ in range(arguments.turns):
            for pages, step in (("0", small), ("1", huge)):
                seconds, bare = process(pages, hidden, arguments.steps)
                step.append(1e3 * seconds)
                products.append(1e3 * bare)
        ratios = [one / other for one, other in zip(small, huge, strict=True)]
        row = (spread(products, 1), spread(small, 1), spread(huge, 1), spread(ratios, 2))
        print(f"| {hidden} | {' | '.join(row)} |", flush=True)


def process(pages: str, hidden: str, steps: int) -> tuple[float, float]:
    """A turn in a process of its own."""
    command = [sys.executable, __file__, "--one", "--hidden", hidden, "--steps", str(steps)]
    ended = subprocess.run(command, env={**os.environ, SWITCH: pages}, check=True, capture_output=True, text=True)
    seconds, bare = json.loads(ended.stdout)
    return seconds, bare


def turn(hidden: int, steps: int) -> tuple[float, float]:
    """Seconds of a step, and of its matrix products."""
    torch.set_num_threads(1)
    below, above = nn.Linear(FEATURES, hidden, bias=False), nn.Linear(hidden, CLASSES, bias=False)
    norm, last_norm = nn.BatchNorm1d(hidden), nn.BatchNorm1d(CLASSES, affine=False)
    model = nn.Sequential(below, norm, nn.ReLU(), above, last_norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(BATCH, FEATURES), torch.randint(CLASSES, (BATCH,))
    first, last = below.weight.detach(), above.weight.detach()
    units, of_units, of_classes = (torch.randn(BATCH, width) for width in (hidden, hidden, CLASSES))
    hidden_out, classes_out = torch.empty(BATCH, hidden), torch.empty(BATCH, CLASSES)
    first_out, last_out = torch.empty_like(first), torch.empty_like(last)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    def products() -> None:
        torch.mm(inputs, first.t(), out=hidden_out)
        torch.mm(of_units.t(), inputs, out=first_out)
        torch.mm(units, last.t(), out=classes_out)
        torch.mm(of_classes.t(), units, out=last_out)
        torch.mm(of_classes, last, out=hidden_out)

    return median_s(step, steps), median_s(products, steps)


def median_s(work: Callable[[], None], times: int) -> float:
    """The median CPU seconds of `work`, after a warm-up."""
    seconds = []
    for _ in range(times + 2):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds[2:])


if __name__ == "__main__":
    main()
