"""Exchanges of four nodes on two switches: labs beside replays, as a markdown table (Linux, root).

An all-reduce, and an exchange of a part with every other node as in IST, each of tensors so large that messages
cost nothing beside their bytes. The replay leaves these costs out.

    python scripts/bench/uplink_lab.py --uplinks none,50mbit --count 20000 --times 1    # to try it, as root
"""

import argparse
import statistics
import time
from typing import Any

import torch
from spread import spread

from istbench.base.units import parse_bandwidth
from istbench.cluster.profile import MessageCosts
from istbench.cluster.simulator import replay
from istbench.cluster.trace_builder import TraceBuilder, merge
from istbench.fabric.fabric import Fabric
from istbench.launch.lab.network import ShapedNetwork
from istbench.launch.processes.local import LocalLauncher
from istbench.launch.processes.on_nodes import on_nodes
from istbench.studies.validation.measure import lab_profile

NODES = 4
FREE = MessageCosts(message_s=0.0, next_s=0.0, cpu_s_per_message=0.0, cpu_s_per_byte=0.0)
EXCHANGES = ("all-reduce", "exchange")


def seconds_of(fabric: Fabric, count: int, times: int) -> list[list[float]]:
    """Seconds of every exchange, `times` each after one that is not counted."""
    whole = torch.ones(count)
    others = [rank for rank in range(NODES) if rank != fabric.rank]
    parts = {rank: torch.ones(count // NODES) for rank in others}
    arriving = {rank: torch.empty(count // NODES) for rank in others}
    found: list[list[float]] = [[], []]
    for kind, seconds in zip(EXCHANGES, found, strict=True):
        for turn in range(times + 1):
            fabric.barrier()
            started = time.perf_counter()
            if kind == "all-reduce":
                fabric.all_reduce_sum(whole)
            else:
                fabric.exchange(parts, arriving)
            if turn:
                seconds.append(time.perf_counter() - started)
            time.sleep(0.5)  # links fill their buckets
    return found


def replayed(kind: str, count: int, place: ShapedNetwork) -> float:
    """Seconds of one exchange in the simulation."""
    nodes = []
    for rank in range(NODES):
        builder = TraceBuilder(clock=lambda: 0.0)
        others = [other for other in range(NODES) if other != rank]
        if kind == "all-reduce":
            posted = [builder.post("all_reduce", 4 * count)]
        else:
            posted = [builder.post("receive", count, (other,)) for other in others]
            posted += [builder.post("send", count, (other,)) for other in others]
        for operation in posted:
            builder.wait(operation)
        builder.mark("step")
        nodes.append(builder.to_arrays())
    return float(replay(merge(nodes, gflops=1.0), lab_profile(place.lab, FREE, 1), compute_scale=1.0).seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidth", default="100mbit")
    parser.add_argument("--uplinks", default="none,100mbit,50mbit")
    parser.add_argument("--count", type=int, default=2_000_000, help="numbers of four bytes in a tensor")
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    print("| uplink | exchange | measured s, median [min-max] | replayed s | replayed / measured |")
    print("| --- | --- | ---: | ---: | ---: |")
    for text in arguments.uplinks.split(","):
        racks: dict[str, Any] = {} if text == "none" else {"racks": 2, "uplink": parse_bandwidth(text)}
        place = ShapedNetwork(nodes=NODES, bandwidth=parse_bandwidth(arguments.bandwidth), **racks)
        launcher = LocalLauncher(place=place)
        by_node = on_nodes(seconds_of, NODES, arguments.count, arguments.times, launcher=launcher)
        for number, kind in enumerate(EXCHANGES):
            slowest = [
                max(turn) / place.lab.dilation for turn in zip(*(node[number] for node in by_node), strict=True)
            ]
            median, there = statistics.median(slowest), replayed(kind, arguments.count, place)
            print(f"| {text} | {kind} | {spread(slowest, 2)} | {there:.2f} | {there / median:.3f} |", flush=True)


if __name__ == "__main__":
    main()
