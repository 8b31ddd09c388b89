"""Seconds of a step in a lab with the fabric's collectives and with gloo's, as a markdown table.

Both take turns in the same processes, some steps each. The bound is the time of the bytes that a node sends one
way, on links that carry nothing but payload. "Computing" is the CPU time of the training thread in a step. Some of
it overlaps with sending in `fsdp`, and none in the other methods.

    python scripts/bench/collectives_lab.py --nodes 2 --methods fsdp --turns 1 --steps 1 --bandwidth 1gbit \
        --workload-set hidden=64 --workload-set samples=64    # to try it, as root
"""

import argparse
import statistics
import time
from typing import Any

from collectives import TCP_PAYLOAD, Gloo
from spread import spread

from istbench.base.options.options import parse_pairs
from istbench.base.units import parse_bandwidth
from istbench.fabric import Fabric
from istbench.launch.lab.network import ShapedNetwork
from istbench.launch.processes.local import LocalLauncher
from istbench.launch.processes.on_nodes import on_nodes
from istbench.studies.conformance.training import batches_of, open_workload, set_up

_TOY = {"features": 1024, "hidden": 1024, "layers": 4, "samples": 4096}
_WIDE = {"hidden": 2048, "features": 256, "labels": 256, "points": 8_000}
# By method: its workload, the samples of a node's minibatch, and the method's options.
METHODS: dict[str, tuple[str, dict[str, Any], int, dict[str, Any]]] = {
    "fsdp": ("toy", _TOY, 16, {}),
    "model_parallel": ("amazon670k", _WIDE, 512, {}),
    "sampled_softmax": ("amazon670k", _WIDE, 512, {"target_active": 16}),
    "dslide": ("amazon670k", _WIDE, 512, {"target_active": 16}),
}


class ByGloo:
    """`fabric` with gloo's collectives, for measurements without a trace."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric, self._gloo = fabric, Gloo(fabric)

    def __getattr__(self, name: str) -> Any:
        own = name in ("all_gather_async", "reduce_scatter_mean_async")
        return getattr(self._gloo if own else self._fabric, name)


def measure(fabric: Fabric, name: str, options: dict[str, str], steps: int, turns: int) -> Any:
    """Seconds of a step on the slowest node, by way and turn, its bytes from node 0, and its CPU seconds."""
    workload_name, sizes, batch_size, own = METHODS[name]
    workload = open_workload(workload_name, {**sizes, **options})
    workload.batch_size = batch_size  # type: ignore[misc]  # of this one alone
    ways: dict[str, Any] = {"gloo": ByGloo(fabric), "fabric": fabric}
    methods = {way: set_up(over, workload, name, own) for way, over in ways.items()}
    seconds: dict[str, list[float]] = {way: [] for way in methods}
    sent, computing = 0, []
    for number in range(-1, turns):  # the first to warm up
        for way in list(methods)[:: 1 if number % 2 else -1]:
            method = methods[way]
            batches = batches_of(fabric, workload, method)
            batch = workload.train_batch(batches.indices(0), batches.generator(0))
            method.step(batch)
            fabric.barrier()
            before, used, started = fabric.traffic["training"].sent, time.thread_time(), time.perf_counter()
            for _ in range(steps):
                method.step(batch)
            took, used = time.perf_counter() - started, time.thread_time() - used
            took, used = fabric.maximum(took), fabric.maximum(used)
            if way == "fabric":
                computing.append(used / steps)
                sent = (fabric.traffic["training"].sent - before) // steps
            if number >= 0:
                seconds[way].append(took / steps)
    return seconds, sent, statistics.median(computing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="fsdp,model_parallel,dslide", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--nodes", default="2,4", help="numbers of nodes")
    parser.add_argument("--bandwidth", default="100mbit,1gbit", help="bandwidths of the links; needs root")
    parser.add_argument("--workload-set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn, after one that is not counted")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    options = parse_pairs(arguments.workload_set, "--workload-set")
    print("| Mbit/s | nodes | method | MB | bound, s | computing, s | gloo, s | ours, s | of bound | gloo / ours |")
    print("| ---: | ---: | :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for bandwidth in map(parse_bandwidth, arguments.bandwidth.split(",")):
        for nodes in map(int, arguments.nodes.split(",")):
            for method in arguments.methods.split(","):
                place = ShapedNetwork(nodes=nodes, bandwidth=bandwidth)
                what = (method, options, arguments.steps, arguments.turns)
                launcher = LocalLauncher(place=place)
                seconds, sent, used = on_nodes(measure, nodes, *what, timeout_s=600.0, launcher=launcher)[0]
                gloo, own = ([took / place.lab.dilation for took in seconds[way]] for way in ("gloo", "fabric"))
                bound = sent * 8 / (bandwidth * TCP_PAYLOAD)
                ratios = [theirs / ours for theirs, ours in zip(gloo, own, strict=True)]
                print(
                    f"| {bandwidth / 1e6:g} | {nodes} | {method} | {sent / 1e6:.2f} | {bound:.4f} "
                    f"| {used:.4f} | {statistics.median(gloo):.4f} | {statistics.median(own):.4f} "
                    f"| {spread([took / bound for took in own], 3)} | {spread(ratios, 3)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
