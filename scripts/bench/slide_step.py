"""Seconds of a training step of a very wide output layer, dense in torch and on active sets, by part.

Both have the same rows, hidden vectors and labels. They take turns, one step each in a round. Weights are uniform,
like the first weights of the amazon670k workload. Hidden vectors are ReLU of normal numbers, with five random
labels each. The dense step is plain torch operations on all outputs at once, with torch's fused Adam over all rows;
`--dense blocks` uses the layer of the workload. About `--active` rows of a sample are active. By default hashing
finds two fifths of them, two fifths are common to all samples, and one fifth is random, as in the method `dslide`.
A step counts one part in `--rebuild-every` of the seconds of a rebuild. `memory alone` reads the rows of the
weights that the outputs read, then reads and writes the rows of weights and moments that Adam changes.

    python scripts/bench/slide_step.py --family simhash --rule adam --rounds 7 --dense none
    python scripts/bench/slide_step.py --outputs 500 --hidden 8 --batch 4 --active 50 --rounds 1    # to try it
"""

import argparse
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numba
import numpy as np
import torch
from spread import spread
from torch import Tensor
from torch.nn import functional as F

from istbench.base.machine import cores
from istbench.methods.slide.active import BLOCKS, Labels, inverted
from istbench.methods.slide.dwta import DWTA
from istbench.methods.slide.index import Index, RebuildSchedule, common_rows
from istbench.methods.slide.kernels import AHEAD, RowOptimizer, Rule, backward, fetch_row, row_outputs
from istbench.methods.slide.shard import OutputShard
from istbench.methods.slide.simhash import SimHash
from istbench.methods.slide.softmax import normaliser, output_gradient
from istbench.methods.slide.threads import Threads
from istbench.workloads.extreme_data.points import SparseBatch
from istbench.workloads.models.extreme import LabelLayer

LABELS = 5
LR = 1e-6  # small: otherwise rows that are often active would move away from the hidden vectors
FAMILIES = {"simhash": SimHash, "dwta": DWTA}
ALONE = "memory alone"
RULES = {"sgd": Rule.SGD, "lazy_adam": Rule.LAZY_ADAM, "adam": Rule.ADAM}
Seconds = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=670_091)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--active", type=int, default=3000)
    parser.add_argument("--common", type=float, default=0.4, help="share of active rows that all samples have")
    parser.add_argument("--random", type=float, default=0.2, help="share of active rows that are random")
    parser.add_argument("--family", choices=FAMILIES, default="dwta")
    parser.add_argument("--functions", type=int, help="K, instead of a choice by --active")
    parser.add_argument("--tables", type=int, help="L, together with K")
    parser.add_argument("--rule", choices=RULES, default="lazy_adam")
    parser.add_argument("--dense", choices=("plain", "blocks", "none"), default="plain")
    parser.add_argument("--rebuild-every", type=int, default=50, help="on average over a training")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=cores())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    hidden, truth = batch(arguments)
    shard, index, threads = sparse_shard(arguments, hidden)
    dense = None if arguments.dense == "none" else DenseLayer(shard, arguments.dense == "blocks")
    seconds: dict[str, Seconds] = {"dense": defaultdict(list), "slide": defaultdict(list)}
    pairs = rows = 0
    for round_number in range(arguments.rounds + 1):  # the first one warms up
        if dense is not None:
            dense.step(torch.from_numpy(hidden), truth, seconds["dense"])
        labels = Labels(
            truth.offsets[1:].numpy(),
            truth.indices.numpy().astype(np.int32),
            np.full(len(truth.indices), 1 / LABELS, np.float32),
        )
        pairs, rows = sparse_step(shard, index, threads, hidden, labels, round_number, seconds["slide"])
        rebuild(index, shard, hidden, threads, seconds["slide"])
    report(arguments, index, pairs, rows, {name: of_rounds(own) for name, own in seconds.items()})


def batch(arguments: argparse.Namespace) -> tuple[np.ndarray, SparseBatch]:
    """Hidden vectors, float32 [b, hidden], and their labels."""
    random = np.random.default_rng(0)
    hidden = np.maximum(random.standard_normal((arguments.batch, arguments.hidden), dtype=np.float32), 0)
    rows = torch.from_numpy(
        np.concatenate([random.choice(arguments.outputs, LABELS, replace=False) for _ in hidden])
    )
    return hidden, SparseBatch(torch.arange(len(hidden) + 1) * LABELS, rows, None, arguments.outputs)


def sparse_shard(arguments: argparse.Namespace, hidden: np.ndarray) -> tuple[OutputShard, Index, Threads]:
    """All rows, with tables that make about the requested number of rows active."""
    threads = Threads(arguments.threads)
    bound = arguments.hidden**-0.5
    weight = np.random.default_rng(1).random((arguments.outputs, arguments.hidden), dtype=np.float32)
    weight *= 2 * bound
    weight -= bound
    bias = np.zeros(arguments.outputs, np.float32)
    family, functions, tables = FAMILIES[arguments.family], arguments.functions or 0, arguments.tables or 0
    common, random = (round(share * arguments.active) for share in (arguments.common, arguments.random))
    index = Index(
        family,
        weight,
        bias,
        threads,
        functions=functions,
        tables=tables,
        target=0 if functions else arguments.active - common - random,
        common=common,
        schedule=RebuildSchedule(first=1, growth=0),
        seed=0,
    )
    index.build(hidden)
    optimizer = RowOptimizer(RULES[arguments.rule], weight)
    return OutputShard(weight, bias, optimizer, threads, index=index, random=random, seed=0), index, threads


class DenseLayer:
    """The layer with all rows, in torch."""

    def __init__(self, shard: OutputShard, blocks: bool) -> None:
        rows, width = shard.weight.shape
        self._layer = LabelLayer(width, rows, block=8192)
        with torch.no_grad():
            self._layer.weight.copy_(torch.from_numpy(shard.weight))
            self._layer.bias.zero_()
        self._optimizer = torch.optim.Adam(self._layer.parameters(), lr=LR, fused=True)
        self._blocks = blocks

    def step(self, hidden: Tensor, truth: SparseBatch, seconds: Seconds) -> None:
        """A step of Adam; returns its seconds by part."""
        hidden = hidden.clone().requires_grad_()
        self._optimizer.zero_grad()
        with timed(seconds, "outputs and loss"):
            if self._blocks:
                loss = self._layer(hidden, truth)
            else:
                logs = F.log_softmax(self._layer(hidden), dim=1)
                loss = -logs[truth.row_of_entry(), truth.indices].sum() / LABELS / len(hidden)
        with timed(seconds, "gradients"):
            loss.backward()
        with timed(seconds, "update"):
            self._optimizer.step()


def sparse_step(
    shard: OutputShard,
    index: Index,
    threads: Threads,
    hidden: np.ndarray,
    labels: Labels,
    step: int,
    seconds: Seconds,
) -> tuple[int, int]:
    """A step of `shard` as in training: its seconds by part, and the numbers of pairs and of used rows."""
    labelled = np.ones(len(hidden), bool)
    with timed(seconds, "hash hidden vectors, look up"):
        sets = shard.active(hidden, labels, step)
    with timed(seconds, "invert"):
        pairs = inverted(sets, labels, len(shard.weight))
    with timed(seconds, "outputs"):
        outputs = row_outputs(shard.weight, shard.bias, hidden, pairs, threads)
        outputs += pairs.logs
    with timed(seconds, "softmax and its gradient"):
        whole = normaliser(outputs, pairs, labels, threads)
        slopes = output_gradient(outputs, pairs, labels, whole.logs, labelled, threads)
    with timed(seconds, "gradients and update"):
        backward(shard.weight, shard.bias, hidden, slopes, pairs, shard.optimizer, LR, threads)
    read, changed = (
        np.array_split(rows, BLOCKS)
        for rows in (pairs.rows, np.arange(len(shard.weight)) if shard.optimizer.rule == Rule.ADAM else pairs.rows)
    )
    with timed(seconds, f"{ALONE}: outputs"):
        threads.run(lambda number: _read(shard.weight, read[number]), BLOCKS)
    if shard.optimizer.rule != Rule.SGD:
        first, second = shard.optimizer.moments
        with timed(seconds, f"{ALONE}: update"):
            threads.run(lambda number: _scale(shard.weight, first, second, changed[number]), BLOCKS)
    return len(pairs), len(pairs.rows)


@numba.njit(nogil=True, fastmath=True)
def _read(weight: np.ndarray, rows: np.ndarray) -> np.float32:
    """The sum of `rows`."""
    total = np.float32(0)
    for number in range(len(rows)):
        fetch_row(weight, rows[min(number + AHEAD, len(rows) - 1)])
        for entry in range(weight.shape[1]):
            total += weight[rows[number], entry]
    return total


@numba.njit(nogil=True, fastmath=True)
def _scale(weight: np.ndarray, moments: np.ndarray, squares: np.ndarray, rows: np.ndarray) -> None:
    """Multiply `rows` by a number near 1."""
    factor = np.float32(0.9999999)
    for number in range(len(rows)):
        row, later = rows[number], rows[min(number + AHEAD, len(rows) - 1)]
        fetch_row(weight, later)
        fetch_row(moments, later)
        fetch_row(squares, later)
        for entry in range(weight.shape[1]):
            weight[row, entry] *= factor
            moments[row, entry] *= factor
            squares[row, entry] *= factor


def rebuild(index: Index, shard: OutputShard, hidden: np.ndarray, threads: Threads, seconds: Seconds) -> None:
    """A rebuild with new functions and tables, and its largest parts alone."""
    with timed(seconds, "rebuild"):
        index.stepped(index.rebuilds + 1, hidden)
    with timed(seconds, "rebuild: hash all rows"):
        index.family.codes(shard.weight, threads)
    with timed(seconds, "rebuild: common rows"):
        common_rows(shard.weight, shard.bias, hidden, len(index.common), threads)


@contextmanager
def timed(seconds: Seconds, part: str) -> Iterator[None]:
    """Add the seconds inside to those of `part`."""
    started = time.perf_counter()
    yield
    seconds[part].append(time.perf_counter() - started)


def of_rounds(seconds: Seconds) -> Seconds:
    """`seconds` without the warm-up round."""
    return {part: own[1:] for part, own in seconds.items()}


def in_ms(seconds: list[float]) -> str:
    return spread([1e3 * own for own in seconds], 1)


def report(arguments: argparse.Namespace, index: Index, pairs: int, rows: int, seconds: dict[str, Seconds]) -> None:
    """Print the measurements as markdown."""
    family, every = index.family, arguments.rebuild_every
    print(
        f"{arguments.outputs:,} outputs, h={arguments.hidden}, batch {arguments.batch}, {arguments.threads} cores; "
        f"{family.name} K={family.functions} L={family.tables}: {pairs / arguments.batch:,.0f} active a sample, "
        f"{rows:,} rows used; tables {index.tables.bytes / 1e6:,.0f} MB; {arguments.rule}; "
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:,.1f} GB\n"
    )
    print("| | part | ms, median [min-max] |\n| :--- | :--- | ---: |")
    totals = {}
    for name, own in seconds.items():
        counted = {part: times for part, times in own.items() if not part.startswith(("rebuild", ALONE))}
        if name == "slide":
            counted[f"rebuild, one in {every} steps"] = [once / every for once in own["rebuild"]]
        for part, times in counted.items():
            print(f"| {name} | {part} | {in_ms(times)} |")
        if counted:
            totals[name] = [sum(times) for times in zip(*counted.values(), strict=True)]
            print(f"| {name} | **step** | {in_ms(totals[name])} |")
    alone = [part for part in seconds["slide"] if part.startswith(ALONE)]
    for part in ("rebuild", "rebuild: hash all rows", "rebuild: common rows", *alone):
        print(f"| slide | {part} | {in_ms(seconds['slide'][part])} |")
    for part, moved in (("outputs", "outputs"), ("gradients and update", "update")):
        if least := seconds["slide"].get(f"{ALONE}: {moved}"):
            ratios = [once / alone for once, alone in zip(seconds["slide"][part], least, strict=True)]
            print(f"\n{part.capitalize()} take {spread(ratios, 2)} times as long as their memory alone.")
    if "dense" in totals:
        ratios = [dense / sparse for dense, sparse in zip(totals["dense"], totals["slide"], strict=True)]
        print(f"\nA dense step takes {spread(ratios, 1)} times as long.")


if __name__ == "__main__":
    main()
