"""Seconds that training stands still for a checkpoint, written beside training and before training goes on.

Training is a loop of matrix products on each node. Both ways take turns in the same processes. Lost are the seconds
by which the loop, with a checkpoint beside it or before it, takes longer than alone.

    python scripts/bench/checkpoints.py --size 1000000 --turns 1 --seconds 0.1    # to try it
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from spread import spread

from istbench.fabric import Fabric
from istbench.launch.processes.on_nodes import on_nodes
from istbench.node.checkpoint_steps import Totals
from istbench.node.distributed_checkpoint import DistributedCheckpoint

TOTALS = {"train_s": 0.0, "wall_s": 0.0, "bytes_sent": 0.0, "bytes_received": 0.0, "computing_s": ()}


def measure(fabric: Fabric, folder: str, size: int, seconds: float, turns: int) -> dict[str, list[float]]:
    """By way and turn, seconds of standing still, and seconds lost in all, on the slowest node."""
    checkpoint = DistributedCheckpoint(Path(folder) / "checkpoint", fabric)
    state = {"method": {str(layer): torch.randn(size // 40) for layer in range(10)}}
    factors = torch.randn(500, 500)
    products = 1

    def train() -> float:
        started = time.perf_counter()
        for _ in range(products):
            _ = factors @ factors
        return time.perf_counter() - started

    train()
    while products < 10**6 and (took := train()) < seconds:
        products = int(products * max(2.0, seconds / took))
    products = int(fabric.maximum(products))
    found: dict[str, list[float]] = {
        f"{way}, {what}": [] for way in ("beside", "before") for what in ("still", "lost")
    }
    for turn in range(2 * turns):
        way = "beside" if turn % 2 else "before"
        fabric.barrier()
        alone = train()
        fabric.barrier()
        started = time.perf_counter()
        checkpoint.start(Totals(step=turn + 1, evaluations=0, evaluations_sha256="", **TOTALS), state)  # type: ignore[arg-type]
        if way == "before":
            checkpoint.finish()
        still = time.perf_counter() - started
        train()
        lost = time.perf_counter() - started - alone
        checkpoint.finish()
        found[f"{way}, still"].append(fabric.maximum(still))
        found[f"{way}, lost"].append(fabric.maximum(lost))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="2", help="numbers of nodes")
    parser.add_argument("--size", default="100000000,200000000", help="bytes of a node's state")
    parser.add_argument("--seconds", type=float, default=3.0, help="of training beside a checkpoint")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    print("| nodes | MB a node | beside: still, s | lost, s | before: still, s | lost, s |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for nodes in map(int, given.nodes.split(",")):
        for size in map(int, given.size.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                found = on_nodes(measure, nodes, folder, size, given.seconds, given.turns, timeout_s=600.0)[0]
            print(f"| {nodes} | {size / 1e6:g} | {' | '.join(spread(values, 3) for values in found.values())} |")


if __name__ == "__main__":
    main()
