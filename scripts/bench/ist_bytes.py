"""Bytes that an IST node sends in a round, against the least possible and a formula, as a markdown table.

Least possible: the values that change their holder between the partitions of two rounds, counted entry by entry for
the busiest node. Formula: 4 (D h/n + (L-1) h^2/n^2 + C h/n + 2 L h/n) bytes, a whole new subnet, with L hidden
layers of h units, D inputs and C labels.

    python scripts/bench/ist_bytes.py --hidden 16 --rounds 1 --layers 2 --nodes 3 --clips 12    # to try it
"""

import argparse
from typing import Literal

import torch
from cells import run_cell

from istbench.workloads.neuron_groups.layout import layout_of, subnet_index
from istbench.workloads.neuron_groups.partition import home_partition, partition_units
from istbench.workloads.speech import Speech, SpeechOptions

INPUTS, LABELS, BYTES = 4096, 35, 4


def formula(hidden: int, layers: int, nodes: int) -> float:
    """Bytes of one subnet."""
    between = (layers - 2) * hidden**2 / nodes**2
    return BYTES * (INPUTS * hidden / nodes + between + (LABELS + 2 * (layers - 1)) * hidden / nodes)


def least(hidden: int, layers: Literal[2, 3], nodes: int, rounds: int) -> float:
    """Least bytes in a round that the busiest node must send: holders before and after, entry by entry."""
    workload = Speech(SpeechOptions(hidden=hidden, layers=layers))
    with torch.device("meta"):
        model = workload.build_model()
    layout = layout_of(model, workload.neuron_groups(model))
    home = home_partition(layout.groups, nodes)
    sent = torch.zeros(nodes, dtype=torch.int64)
    for cut in layout.cut:
        before = None
        for round_index in range(rounds + 1):
            partition = partition_units(layout.groups, nodes, seed=0, round_index=round_index)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clips", type=int, default=6, help="clips of a word")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3, 4, 8])
    arguments = parser.parse_args()
    hidden, rounds = arguments.hidden, arguments.rounds
    print("| layers | nodes | MB sent per round | least possible | sent / least | formula | sent / formula |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for layers in arguments.layers:
        for nodes in arguments.nodes:
            result = run_cell(
                "--workload", "speech", "--method", "ist", "--nodes", nodes, "--steps", rounds, "--batch-size", 4,
                "--set", "local_steps=1", "--workload-set", f"hidden={hidden}",
                "--workload-set", f"layers={layers}", "--workload-set", f"clips_per_word={arguments.clips}",
            )  # fmt: skip
            measured = result["bytes_sent_per_node"] / rounds
            possible, whole = least(hidden, layers, nodes, rounds), formula(hidden, layers, nodes)
            print(
                f"| {layers} | {nodes} | {measured / 1e6:.2f} | {possible / 1e6:.2f} | {measured / possible:.4f} "
                f"| {whole / 1e6:.2f} | {measured / whole:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
