"""The ratio of the seconds of an IST local step to those of the full model, beside the ratio of multiply-adds.

One process with one thread: the full network and node 0's subnets of 2, 4 and 8 nodes take a step in turns
(forward, backward, plain SGD). The script counts CPU seconds, in these layouts:

contiguous           torch's default
channels-last        weights and images with the channels innermost, as istbench runs a subnet with --channels-last
channels-last-torch  the same, with torch's own BatchNorm of few channels
padded               channels with zero weights, in no subnet, fill every group up to a multiple of `--multiple`

    python scripts/bench/narrow_channels.py --model resnet18 --width 16 --layouts contiguous,padded,channels-last
    python scripts/bench/narrow_channels.py --width 8 --pixels 8 --batch 2 --repeats 1    # to try it
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from spread import spread
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from istbench.workloads.memory_order import make_narrow_norms_contiguous
from istbench.workloads.models.resnet import cifar_resnet18, resnet_groups
from istbench.workloads.models.vgg import vgg12, vgg_groups
from istbench.workloads.neuron_groups.groups import NeuronGroup
from istbench.workloads.neuron_groups.layout import build_subnet
from istbench.workloads.neuron_groups.partition import GroupPartition, Partition, partition_units, units_on

NODES = (2, 4, 8)
CLASSES = 10
Step = Callable[[], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("resnet18", "vgg12"), default="resnet18")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--pixels", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="steps of a repeat")
    parser.add_argument("--multiple", type=int, default=8)
    parser.add_argument("--layouts", default="contiguous,padded,channels-last-torch,channels-last")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = [f"{nodes} nodes: ms | over full | of its share" for nodes in NODES]
    print(f"| layout | full: ms | {' | '.join(columns)} |")
    print("| :--- |" + " ---: |" * (1 + 3 * len(NODES)))
    images = torch.randn(arguments.batch, 3, arguments.pixels, arguments.pixels)
    labels = torch.randint(CLASSES, (arguments.batch,))
    work = [multiply_adds(network(arguments, nodes, "contiguous"), images, labels) for nodes in (1, *NODES)]
    shares = [one / work[0] for one in work[1:]]
    print("| multiply-adds | | " + " | ".join(f"| {share:.3f} | 1" for share in shares) + " |")
    for layout in arguments.layouts.split(","):
        order = torch.channels_last if layout.startswith("channels-last") else torch.contiguous_format
        networks = [network(arguments, nodes, layout) for nodes in (1, *NODES)]
        for model in networks:
            model.to(memory_format=order)  # type: ignore[call-overload]
        steps = [step_of(model, images.to(memory_format=order), labels) for model in networks]
        seconds = in_turns(steps, arguments.repeats, arguments.steps)
        row = [f"| {layout} | {1e3 * statistics.median(seconds[0]):.0f}"]
        for mine, share in zip(seconds[1:], shares, strict=True):
            over = [one / full for one, full in zip(mine, seconds[0], strict=True)]
            in_share = spread([ratio / share for ratio in over], 2)
            row.append(f"{1e3 * statistics.median(mine):.0f} | {statistics.median(over):.3f} | {in_share}")
        print(" | ".join(row) + " |", flush=True)


def network(arguments: argparse.Namespace, nodes: int, layout: str) -> nn.Module:
    """The full network of one node, or node 0's subnet of several; random weights."""
    with torch.device("meta"):
        if arguments.model == "resnet18":
            full: nn.Module = cifar_resnet18(arguments.width, CLASSES)
        else:
            full = vgg12(arguments.width, CLASSES, arguments.pixels)
    groups = resnet_groups(full) if arguments.model == "resnet18" else vgg_groups(full)
    partition = partition_units(groups, nodes, seed=0, round_index=0)
    if layout == "padded" and nodes > 1:
        partition = padded(partition, groups, arguments.multiple)
    model = build_subnet(full, groups, units_on(0, partition), torch.device("cpu"))
    if layout != "channels-last-torch":
        make_narrow_norms_contiguous(model)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05) if parameter.dim() > 1 else nn.init.ones_(parameter)
    return model


def padded(partition: Partition, groups: Sequence[NeuronGroup], multiple: int) -> Partition:
    """The partition with node 0's units repeated up to a multiple: the shapes matter here, not the values."""
    filled = {}
    for group in groups:
        parts = partition[group.name]
        mine = parts.units[0]
        length = -(-len(mine) // multiple) * multiple
        units = mine.repeat(-(-length // len(mine)))[:length]
        filled[group.name] = GroupPartition((units, *parts.units[1:]), parts.owner, parts.position)
    return filled


def step_of(model: nn.Module, images: Tensor, labels: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def multiply_adds(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Multiply-adds of one forward and backward pass."""
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(images), labels).backward()
    return counter.get_total_flops() // 2


def in_turns(steps: Sequence[Step], repeats: int, count: int) -> list[list[float]]:
    """CPU seconds per step of each of `steps`, by repeat."""
    seconds: list[list[float]] = [[] for _ in steps]
    for step in steps:  # warm-up
        step()
    for _ in range(repeats):
        for step, mine in zip(steps, seconds, strict=True):
            started = time.process_time()
            for _ in range(count):
                step()
            mine.append((time.process_time() - started) / count)
    return seconds


if __name__ == "__main__":
    main()
