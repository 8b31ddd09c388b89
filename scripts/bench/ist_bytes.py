"""Bytes that an IST node sends in a round, against the least possible and a formula, as a markdown table.

Least possible: the values that change their holder between the partitions of two rounds, counted entry by entry for
the busiest node. Formula: 4 (D h/n + (L-1) h^2/n^2 + C h/n + 2 L h/n) bytes, a whole new subnet, with L hidden
layers of h units, D inputs and C labels.

With `--streaming`, the units of a round move in waves, and the partitions are those before and after its waves.

    python scripts/bench/ist_bytes.py --hidden 16 --rounds 1 --layers 2 --nodes 3 --clips 12    # to try it
    python scripts/bench/ist_bytes.py --hidden 1024 --layers 3 --streaming --moving 0.25
"""

import argparse
from collections.abc import Iterator

import torch
from cells import run_cell

from istbench.subnets.dealing import selected_groups
from istbench.subnets.layout import Layout, layout_of, subnet_index
from istbench.subnets.partition import Deals, Partition, home_partition
from istbench.subnets.streaming import Timetable, turns_of
from istbench.workloads.speech import Speech, SpeechOptions

INPUTS, LABELS, BYTES = 4096, 35, 4
WAVES = 20


def formula(hidden: int, layers: int, nodes: int) -> float:
    """Bytes of one subnet."""
    between = (layers - 2) * hidden**2 / nodes**2
    return BYTES * (INPUTS * hidden / nodes + between + (LABELS + 2 * (layers - 1)) * hidden / nodes)


def layout(hidden: int, layers: int, deal: str) -> Layout:
    """The layout of the network with the groups that `deal` selects."""
    workload = Speech(SpeechOptions(hidden=hidden, layers=layers))
    with torch.device("meta"):
        model = workload.build_model()
    return layout_of(model, selected_groups(model, workload.neuron_groups(model), deal.split(",")))


def partitions(layout: Layout, nodes: int, rounds: int, moving: float, *, streaming: bool) -> Iterator[Partition]:
    """The partitions before the first round, and after each round."""
    deals = Deals(layout.groups, nodes, seed=0, moving=moving)
    partition = deals.partition(0)
    yield partition
    table = Timetable(layout.groups, nodes, 0, WAVES, turns_of(layout), moving)
    for round_index in range(rounds):
        for wave in range(WAVES if streaming else 0):
            partition = table.wave(partition, round_index, wave).new
        yield partition if streaming else deals.partition(round_index + 1)


def least(layout: Layout, nodes: int, rounds: int, moving: float, *, streaming: bool) -> float:
    """Least bytes in a round that the busiest node must send: holders before and after, entry by entry."""
    home = home_partition(layout.groups, nodes)
    sent = torch.zeros(nodes, dtype=torch.int64)
    for cut in layout.cut:
        before = None
        for partition in partitions(layout, nodes, rounds, moving, streaming=streaming):
            holder = home[cut.axes[0].group].owner.to(torch.int8)
            holder = holder.reshape([-1 if d == cut.axes[0].dim else 1 for d in range(len(cut.shape))])
            holder = holder.expand(cut.shape).contiguous()
            for node in range(nodes):
                where = [torch.arange(length) for length in cut.shape]
                for axis, index in zip(cut.axes, subnet_index(cut, partition, node), strict=True):
                    where[axis.dim] = index
                if len(where) == 2:
                    holder[where[0][:, None], where[1]] = node
                else:
                    holder[where[0]] = node
            if before is not None:
                sent += torch.bincount(before[before != holder].long(), minlength=nodes)
            before = holder
    return float(sent.max()) * BYTES / rounds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clips", type=int, default=6, help="clips of a word")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3, 4, 8])
    parser.add_argument("--deal", default="all", help="layers whose units are dealt")
    parser.add_argument("--moving", type=float, default=1.0, help="share of the units that a round deals again")
    parser.add_argument("--streaming", action="store_true", help=f"streaming_ist, with {WAVES} waves in a round")
    arguments = parser.parse_args()
    hidden, rounds, moving = arguments.hidden, arguments.rounds, arguments.moving
    method, steps = ("streaming_ist", WAVES) if arguments.streaming else ("ist", 1)
    print("| layers | nodes | MB sent per round | least possible | sent / least | formula | sent / formula |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for layers in arguments.layers:
        for nodes in arguments.nodes:
            result = run_cell(
                "--workload", "speech", "--method", method, "--nodes", nodes, "--steps", rounds * steps,
                "--batch-size", 4,
                "--set", f"local_steps={steps}", "--set", f"deal={arguments.deal}", "--set", f"moving={moving}",
                "--workload-set", f"hidden={hidden}",
                "--workload-set", f"layers={layers}", "--workload-set", f"clips_per_word={arguments.clips}",
            )  # fmt: skip
            measured = result["bytes_sent_per_node"] / rounds
            found = layout(hidden, layers, arguments.deal)
            possible = least(found, nodes, rounds, moving, streaming=arguments.streaming)
            whole = formula(hidden, layers, nodes)
            print(
                f"| {layers} | {nodes} | {measured / 1e6:.2f} | {possible / 1e6:.2f} | {measured / possible:.4f} "
                f"| {whole / 1e6:.2f} | {measured / whole:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
