"""Milliseconds of an exchange of `ist` on one node without the network, beside a local step, as a markdown table.

Node 0 of the speech network plans its blocks, gathers the values that it sends and writes those that arrive. To
compare two checkouts, run it with each of them on PYTHONPATH, in turns.

    python scripts/bench/repartition.py --hidden 1024,4096 --layers 3 --nodes 2,4,8,16
    python scripts/bench/repartition.py --hidden 16 --layers 2 --nodes 3 --times 1    # to try it
"""

import argparse
import statistics
import time
from typing import Any, Literal

import torch
from torch import Tensor

from istbench.methods.subnets.exchange import Holdings, Repartition, count_values, gather_blocks, write_blocks
from istbench.workloads.neuron_groups.layout import Layout, build_subnet, layout_of, product_shape, subnet_index
from istbench.workloads.neuron_groups.partition import Deals, Partition, home_partition, units_on
from istbench.workloads.speech import Speech, SpeechOptions

CPU, BATCH, INPUTS = torch.device("cpu"), 128, 4096


def milliseconds(hidden: int, layers: Literal[2, 3], nodes: int, times: int) -> tuple[float, ...]:
    """Medians: of planning, gathering, writing, and of a step of the subnet without its optimizer."""
    workload = Speech(SpeechOptions(hidden=hidden, layers=layers))
    with torch.device("meta"):
        model = workload.build_model()
    layout = layout_of(model, workload.neuron_groups(model))
    deals, home = Deals(layout.groups, nodes, seed=0), home_partition(layout.groups, nodes)
    old, new = deals.partition(0), deals.partition(1)
    holdings, like = held(layout, old, home), torch.zeros(1)
    subnet = build_subnet(model, layout.groups, units_on(0, old), CPU)
    for tensor in (*subnet.parameters(), *subnet.buffers()):
        tensor.data.fill_(0.01)
    inputs = torch.randn(BATCH, INPUTS)
    taken, peers = [], range(nodes)
    for _ in range(times + 1):
        moments = [time.perf_counter()]
        plan = Repartition(layout, old, new, home)
        outgoing, incoming = ([side(0, peer) for peer in peers] for side in (plan.outgoing, plan.incoming))
        moments.append(time.perf_counter())
        for blocks in outgoing:
            gather_blocks(holdings, blocks, like)
        moments.append(time.perf_counter())
        arrived = [torch.zeros(count_values(holdings, blocks)) for blocks in incoming]
        began = time.perf_counter()
        for blocks, values in zip(incoming, arrived, strict=True):
            write_blocks(holdings, blocks, values)
        written = time.perf_counter()
        subnet(inputs).sum().backward()
        stepped = time.perf_counter()
        taken.append((moments[1] - moments[0], moments[2] - moments[1], written - began, stepped - written))
    return tuple(1e3 * statistics.median(seconds) for seconds in zip(*taken[1:], strict=True))


def held(layout: Layout, partition: Partition, home: Partition) -> Holdings:
    """What node 0 holds, as zeros."""
    subnet, shards = {}, {}
    for cut in layout.cut:
        subnet[cut.name] = [zeros(cut.shape, cut.axes, subnet_index(cut, partition, 0))]
        if cut.needs_home:
            shards[cut.name] = [zeros(cut.shape, cut.axes[:1], subnet_index(cut, home, 0)[:1])]
    return Holdings(subnet, shards)


def zeros(shape: torch.Size, axes: Any, index: list[Tensor]) -> Tensor:
    return torch.zeros(product_shape(shape, axes, index))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", default="1024,4096")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--nodes", default="2,4,8,16")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| hidden | nodes | plan, ms | gather, ms | write, ms | a step, ms |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for hidden in map(int, options.hidden.split(",")):
        for nodes in map(int, options.nodes.split(",")):
            found = milliseconds(hidden, options.layers, nodes, options.times)
            print(f"| {hidden} | {nodes} | " + " | ".join(f"{each:.1f}" for each in found) + " |")


if __name__ == "__main__":
    main()
