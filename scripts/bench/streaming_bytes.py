"""Bytes that units take along in a round of `ist` and of `streaming_ist`, by what is dealt and how much moves.

Counted from the plans of the exchanges, without processes: values of a node, mean over nodes and rounds, without
optimizer state and without shared tensors. The least are the values that change their holder between the partitions
before and after a round. Where two dealt layers follow each other, streaming sends more than the least: one end of
a weight moves first, then the other. `in turn` deals one of the two ends in a round, and the other end in the next;
it is no option of `streaming_ist`.

    python scripts/bench/streaming_bytes.py --hidden 24 --width 8 --rounds 2 --nodes 2    # to try it
"""

import argparse
from collections.abc import Iterator
from itertools import pairwise, permutations

import torch
from torch import Tensor

from istbench.methods.dealt_groups import selected_groups
from istbench.methods.subnets.exchange import Block, Repartition
from istbench.methods.subnets.streaming import Flights, Timetable, turns_of
from istbench.workloads.base import Workload
from istbench.workloads.imagenet import ImageNet, ImageNetOptions
from istbench.workloads.neuron_groups.layout import CutTensor, Layout, layout_of
from istbench.workloads.neuron_groups.partition import Deals, Partition, home_partition
from istbench.workloads.speech import Speech, SpeechOptions

VALUE_BYTES = 4
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096, help="units of a hidden layer of the speech network")
    parser.add_argument("--width", type=int, default=64, help="channels of VGG12's first convolution")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--waves", type=int, default=20, help="waves of a round")
    arguments = parser.parse_args()
    speech = Speech(SpeechOptions(hidden=arguments.hidden, layers=3))
    vgg = ImageNet(ImageNetOptions(model="vgg12", width=arguments.width, resolution=32, classes=200))
    print(
        "| network | deal | moving | nodes | MB, ist | MB, streaming | of ist | ist / least | streaming / least |"
    )
    print("| :--- | :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, workload, deals in (
        ("speech, three layers", speech, ("all", "hidden1")),
        ("VGG12", vgg, ("all", "late", "hidden10", "hidden1,hidden3,hidden5,hidden7,hidden9,hidden11")),
    ):
        for deal in deals:
            layout = layout_in(workload, deal)
            for moving in (1.0, 0.25):
                for nodes in arguments.nodes:
                    row(name, deal, layout, nodes, moving, arguments.rounds, arguments.waves)
        for nodes in arguments.nodes:
            in_turn(name, layout_in(workload, "all"), nodes, arguments.rounds, arguments.waves)


def layout_in(workload: Workload, deal: str) -> Layout:
    """The layout of the model of `workload` with the groups that `deal` selects."""
    with torch.device("meta"):
        model = workload.build_model()
    return layout_of(model, selected_groups(model, workload.neuron_groups(model), deal.split(",")))


def row(name: str, deal: str, layout: Layout, nodes: int, moving: float, rounds: int, waves: int) -> None:
    """Print the row of both methods."""
    table = Timetable(layout.groups, nodes, SEED, waves, turns_of(layout), moving)
    ordinary, ends = moved_at_once(layout, nodes, moving, rounds)
    streamed, stream_ends = streamed_values(layout, nodes, [table], rounds)
    least, stream_least = (changed_values(layout, nodes, each) for each in (ends, stream_ends))
    mb, stream_mb = (megabytes(values, nodes, rounds) for values in (ordinary, streamed))
    print(
        f"| {name} | {deal} | {moving:g} | {nodes} | {mb:.2f} | {stream_mb:.2f} | {streamed / ordinary:.3f} "
        f"| {ordinary / least:.4f} | {streamed / stream_least:.4f} |",
        flush=True,
    )


def in_turn(name: str, layout: Layout, nodes: int, rounds: int, waves: int) -> None:
    """Print the row of streaming that moves the groups of one turn in a round."""
    turns = turns_of(layout)
    tables = [
        Timetable(
            tuple(group for group in layout.groups if turns[group.name] == turn), nodes, SEED, waves,
            {group.name: 0 for group in layout.groups if turns[group.name] == turn},
        )
        for turn in range(1 + max(turns.values()))
    ]  # fmt: skip
    streamed, ends = streamed_values(layout, nodes, tables, rounds)
    least = changed_values(layout, nodes, ends)
    print(
        f"| {name} | all, in turn | 1 | {nodes} | | {megabytes(streamed, nodes, rounds):.2f} | | "
        f"| {streamed / least:.4f} |",
        flush=True,
    )


def megabytes(values: int, nodes: int, rounds: int) -> float:
    """The MB of a node in a round, of the values of all nodes in all rounds."""
    return values * VALUE_BYTES / nodes / rounds / 1e6


def moved_at_once(layout: Layout, nodes: int, moving: float, rounds: int) -> tuple[int, list[Partition]]:
    """The values that all nodes send in `ist`, and the partitions between rounds."""
    deals, home = Deals(layout.groups, nodes, seed=SEED, moving=moving), home_partition(layout.groups, nodes)
    ends = [deals.partition(number) for number in range(rounds + 1)]
    return sum(sent(Repartition(layout, old, new, home), nodes) for old, new in pairwise(ends)), ends


def streamed_values(
    layout: Layout, nodes: int, tables: list[Timetable], rounds: int
) -> tuple[int, list[Partition]]:
    """The same in `streaming_ist`, where rounds take the waves of `tables` in turn."""
    home = home_partition(layout.groups, nodes)
    ends, values = [Deals(layout.groups, nodes, seed=SEED).partition(0)], 0
    for number in range(rounds):
        table, partition = tables[number % len(tables)], ends[-1]
        for place in range(table.waves):
            wave = table.wave(partition, number, place)
            values, partition = values + sent(Flights(layout, wave, home), nodes), wave.new
        ends.append(partition)
    return values, ends


def sent(plan: Repartition | Flights, nodes: int) -> int:
    """The values that all nodes send to others by `plan`."""

    def blocks() -> Iterator[Block]:
        for node, peer in permutations(range(nodes), 2):
            yield from plan.outgoing(node, peer)

    return sum(block.shape.numel() for block in blocks())


def changed_values(layout: Layout, nodes: int, ends: list[Partition]) -> int:
    """The values whose holder differs between consecutive partitions."""
    home = home_partition(layout.groups, nodes)
    changed = 0
    for cut in layout.cut:
        for old, new in pairwise(holders(cut, end, home) for end in ends):
            changed += cut.shape.numel() // old.numel() * int((old != new).sum())
    return changed


def holders(cut: CutTensor, partition: Partition, home: Partition) -> Tensor:
    """The node that holds the entries of each unit, or of each pair of units, of a tensor."""
    owner = partition[cut.axes[0].group].owner.to(torch.int8)
    if len(cut.axes) == 1:
        return owner
    other = partition[cut.axes[1].group].owner.to(torch.int8)
    at_home = home[cut.axes[0].group].owner.to(torch.int8)
    return torch.where(owner[:, None] == other[None, :], owner[:, None], at_home[:, None])


if __name__ == "__main__":
    main()
