"""Images per second of the loader alone, and of a training step, as a markdown table.

Both use all cores: the loader has one thread for each core, a training step as many intra-op threads. Rounds of the
two alternate, so that other work of the machine affects both.

    python scripts/bench/image_loader.py --workload-set images=64 --batch-size 2 --seconds .1 --times 1  # to try it
"""

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from istbench.base.cache import cache_directory
from istbench.base.machine import cores
from istbench.methods.base import materialise
from istbench.node.registry import build_workload
from istbench.workloads.base import Workload
from istbench.workloads.batches import ShardedBatches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="cifar10")
    parser.add_argument("--workload-set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each round")
    parser.add_argument("--times", type=int, default=5, help="rounds")
    arguments = parser.parse_args()
    options = dict(pair.split("=", 1) for pair in arguments.workload_set)
    workload = build_workload(arguments.workload, options)
    workload.open(workload.prepare(arguments.data, cache_directory(), lambda *_: None))
    size = arguments.batch_size
    batches = ShardedBatches(workload.train_size, size, rank=0, world_size=1, seed=0)
    step = training_step(workload, batches)
    step(0)
    loads, trains = [], []
    for number in range(arguments.times):
        first = number * 1_000_000
        loads.append(size * loaded_a_second(workload, batches, first, arguments.seconds))
        trains.append(size * done_a_second(step, first, arguments.seconds))
    ratios = [load / train for load, train in zip(loads, trains, strict=True)]
    label = " ".join([arguments.workload, *arguments.workload_set])
    print("| workload | loader alone, images/s | training, images/s | loader over training, median [min-max] |")
    print("| --- | ---: | ---: | ---: |")
    print(
        f"| {label} | {statistics.median(loads):,.0f} | {statistics.median(trains):,.0f} "
        f"| {statistics.median(ratios):.1f} [{min(ratios):.1f}-{max(ratios):.1f}] |"
    )


def training_step(workload: Workload, batches: ShardedBatches) -> Callable[[int], None]:
    """A function that trains the workload's model on one batch, always the same, without loading."""
    with torch.device("meta"):
        model = workload.build_model()
    model = materialise(model, workload, 0, torch.device("cpu")).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    batch = workload.train_batch(batches.indices(0), batches.generator(0))

    def step(number: int) -> None:
        loss = workload.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def loaded_a_second(workload: Workload, batches: ShardedBatches, first: int, seconds: float) -> float:
    """Batches per second with one loading thread for each core, from step `first` on."""
    batches.indices(first)  # the shuffle of another epoch is not part of loading

    def load(worker: int) -> int:
        steps_per_epoch, made, ends = batches.steps_per_epoch, 0, time.perf_counter() + seconds
        while time.perf_counter() < ends:
            step = first - first % steps_per_epoch + (worker + made * cores()) % steps_per_epoch
            workload.train_batch(batches.indices(step), batches.generator(step))
            made += 1
        return made

    started = time.perf_counter()
    with ThreadPoolExecutor(cores()) as pool:
        made = sum(pool.map(load, range(cores())))
    return made / (time.perf_counter() - started)


def done_a_second(work: Callable[[int], None], first: int, seconds: float) -> float:
    """Calls of `work` per second."""
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        work(first + done)
        done += 1
    return done / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
