"""Seconds and bytes of one checkpoint of two nodes, by method, as a table in Markdown.

    python scripts/bench/checkpoint_cost.py                        # this checkout
    python scripts/bench/checkpoint_cost.py --tree OLD --tree .    # two checkouts, in turns

Every case trains two steps and writes `--times` checkpoints. Seconds are those of the slowest node, from the call
to the published step: the median over all turns, and the range. Bytes on disk are those of one step. The nodes are
processes of this machine. For "two hosts" the second sends its part to the first over the loopback interface. The
network has the sizes of the speech network with two hidden layers of 4096. `dslide` has 100,000 labels. Both have
about 100 MB.
"""

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NODES, STEPS = 2, 2
DEEP = {"features": 4096, "hidden": 4096, "layers": 2, "samples": 2048, "batch_norm": True}
WIDE = {"hidden": 128, "features": 100_000, "labels": 100_000, "points": 2048}
SIZES = {"toy": DEEP, "amazon670k": WIDE}
TINY = {"toy": {**DEEP, "features": 64, "hidden": 64}, "amazon670k": {**WIDE, "features": 500, "labels": 300}}
CASES = {"ist": "toy", "ddp": "toy", "p3": "toy", "dslide": "amazon670k"}


def node_writes(fabric, folder, method_name, sizes, times, apart):
    """On every node: seconds of each checkpoint, bytes of a step, and bytes that this node sent for it."""
    from istbench.conformance.training import open_workload, set_up, train
    from istbench.node.checkpoint import Totals

    try:
        from istbench.node.distributed_checkpoint import DistributedCheckpoint
    except ImportError:  # the name in older checkouts
        from istbench.node.parts import Parts as DistributedCheckpoint

    if apart:
        os.environ["GROUP_RANK"] = str(fabric.rank)
    workload = open_workload(CASES[method_name], sizes)
    method = set_up(fabric, workload, method_name, {})
    train(fabric, workload, method, 0, STEPS)
    method.drain()
    parts = DistributedCheckpoint(Path(folder), fabric)
    shared = [] if len(inspect.signature(parts.write).parameters) < 3 else [lambda keys: method.is_shared(keys[1:])]
    seconds = []
    for number in range(times + 1):  # the first one warms up
        totals = Totals(step=STEPS + number, train_s=1, wall_s=1, bytes_sent=0, bytes_received=0)
        fabric.barrier()
        before, started = fabric.traffic["assemble"].sent, time.perf_counter()
        parts.write(totals, {"method": method.state_dict()}, *shared)
        fabric.barrier()
        seconds.append(time.perf_counter() - started)
        sent = fabric.traffic["assemble"].sent - before
    files = [path for path in Path(folder, str(STEPS + times)).iterdir() if path.suffix != ".tmp"]
    return {"seconds": seconds[1:], "disk": sum(path.stat().st_size for path in files), "sent": sent}


def measure(method, apart, times, tiny):
    """One case, in this process's checkout, as JSON on standard output."""
    from checkpoint_cost import node_writes as importable

    try:
        from istbench.processes.on_nodes import on_nodes
    except ImportError:  # in older checkouts
        from istbench.conformance.processes import on_nodes

    workload = CASES[method]
    sizes = (TINY if tiny else SIZES)[workload]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # on a disk: /tmp may be in memory
        found = on_nodes(importable, NODES, folder, method, sizes, times, apart, timeout_s=600)
    seconds = [max(pair) for pair in zip(*(rank["seconds"] for rank in found), strict=True)]
    print(json.dumps({"seconds": seconds, "disk": found[0]["disk"], "sent": max(rank["sent"] for rank in found)}))


def measured_in(tree, method, apart, arguments):
    """The same, in a process with the package of checkout `tree`."""
    own = [str(tree.resolve()), str(Path(__file__).resolve().parent)]
    words = ["--measure", method, "--times", str(arguments.times), *(["--tiny"] if arguments.tiny else [])]
    done = subprocess.run(
        [sys.executable, __file__, *words, *(["--apart"] if apart else [])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(own)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout)


def table(trees, found):
    """The lines of the table: a row for each method, place and tree."""
    lines = ["| method | nodes on | tree | s | MB on disk | MB sent |", "| --- | --- | --- | --- | --- | --- |"]
    for (method, apart), by_tree in found.items():
        for tree in trees:
            seconds = [value for turn in by_tree[tree] for value in turn["seconds"]]
            last = by_tree[tree][-1]
            spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
            place = "two hosts" if apart else "one host"
            lines.append(
                f"| {method} | {place} | {tree} | {spread} | {last['disk'] / 1e6:.1f} | {last['sent'] / 1e6:.1f} |"
            )
    return lines


def main():
    """Measure all cases of all trees in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, action="append", help="a checkout to measure; may be repeated")
    parser.add_argument("--turns", type=int, default=3, help="number of turns, each with every case in every tree")
    parser.add_argument("--times", type=int, default=3, help="checkpoints of a case in one turn")
    parser.add_argument("--tiny", action="store_true", help="small models, to try this script")
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.apart, arguments.times, arguments.tiny)
        return
    trees = arguments.tree or [Path(__file__).resolve().parents[2]]
    found = {(method, apart): {tree: [] for tree in trees} for method in CASES for apart in (False, True)}
    for turn in range(arguments.turns):
        for (method, apart), by_tree in found.items():
            for tree in trees if turn % 2 == 0 else trees[::-1]:
                by_tree[tree].append(measured_in(tree, method, apart, arguments))
                print(f"turn {turn + 1}: {method}, {tree}", file=sys.stderr)
    print("\n".join(table(trees, found)))


if __name__ == "__main__":
    main()
