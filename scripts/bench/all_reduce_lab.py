"""Seconds of an all-reduce in a lab by gloo and by exchanges in turns, as a markdown table.

Both take turns in the same processes. The bound is the time of the bytes that a node sends in a ring all-reduce, on
links that carry nothing but payload. By exchanges, a small tensor goes whole to all nodes, so it has more bytes.

    python scripts/bench/all_reduce_lab.py --nodes 2 --latency 10ms --size 400000 --turns 1    # to try it, as root
"""

import argparse
import statistics
import time

import torch
from spread import spread

from istbench.base.units import parse_bandwidth, parse_time
from istbench.cluster import in_turns
from istbench.cluster.profile import TCP_PAYLOAD, bandwidth_text
from istbench.fabric import Fabric
from istbench.launch.lab.network import ShapedNetwork
from istbench.launch.processes.local import LocalLauncher
from istbench.launch.processes.on_nodes import on_nodes


def measure(
    fabric: Fabric, size: int, repeats: int, turns: int, slices: int, message: int, host_nodes: int
) -> dict[str, list[float]]:
    """Seconds of an all-reduce of `size` bytes on the slowest node, by way and turn."""
    in_turns.MOST_SLICES, in_turns.LEAST_MESSAGE = slices, message
    fabric.host_nodes = host_nodes
    values = torch.ones(size // 4)
    seconds: dict[str, list[float]] = {"gloo": [], "turns": []}
    for number in range(-1, turns):  # the first to warm up
        for way in list(seconds)[:: 1 if number % 2 else -1]:
            fabric.far = way == "turns"
            fabric.barrier()
            started = time.perf_counter()
            for _ in range(repeats):
                fabric.all_reduce_mean(values)
            took = fabric.maximum(time.perf_counter() - started)
            if number >= 0:
                seconds[way].append(took / repeats)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="2,4", help="numbers of nodes")
    parser.add_argument("--host-nodes", type=int, default=1, help="nodes of each host, whose values add up first")
    parser.add_argument("--bandwidth", default="1gbit", help="bandwidths of the links; needs root")
    parser.add_argument("--latency", default="0ms,10ms,25ms", help="latencies one way")
    parser.add_argument("--size", default="4000,1000000,100000000", help="bytes of the tensor")
    parser.add_argument("--slices", type=int, default=in_turns.MOST_SLICES, help="most slices of a tensor")
    parser.add_argument("--message", type=int, default=in_turns.LEAST_MESSAGE, help="least bytes of a message")
    parser.add_argument("--repeats", type=int, default=3, help="all-reduces of a turn")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    print("| bandwidth | one way | nodes | MB | bound, s | gloo, s | turns, s | turns / bound | gloo / turns |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for bandwidth in map(parse_bandwidth, given.bandwidth.split(",")):
        for latency_s in (parse_time(latency, "--latency") for latency in given.latency.split(",")):
            for nodes in map(int, given.nodes.split(",")):
                place = ShapedNetwork(
                    nodes=nodes, bandwidth=bandwidth, latency_s=latency_s, host_nodes=given.host_nodes
                )
                launcher = LocalLauncher(place=place)
                for size in map(int, given.size.split(",")):
                    what = (size, given.repeats, given.turns, given.slices, given.message, given.host_nodes)
                    seconds = on_nodes(measure, nodes, *what, timeout_s=600.0, launcher=launcher)[0]
                    gloo, turns = (
                        [took / place.lab.dilation for took in seconds[way]] for way in ("gloo", "turns")
                    )
                    bound = 2 * size * (nodes - 1) / nodes * 8 / (bandwidth * TCP_PAYLOAD)
                    ratios = [theirs / ours for theirs, ours in zip(gloo, turns, strict=True)]
                    print(
                        f"| {bandwidth_text(bandwidth)} | {latency_s * 1e3:g} ms | {nodes} | {size / 1e6:g} "
                        f"| {bound:.4f} | {statistics.median(gloo):.4f} | {statistics.median(turns):.4f} "
                        f"| {spread([took / bound for took in turns], 3)} | {spread(ratios, 3)} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
