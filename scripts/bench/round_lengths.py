"""Rounds of 1 to 100,000 local steps at one budget: accuracy, seconds and bytes.

No round is free: an exchange closes a round that is longer than the budget, on the clock.

    python scripts/bench/round_lengths.py --methods ist --lengths 50 --nodes 2 --epochs 1 --clips 12    # to try it
"""

import argparse

from cells import run_cell

from istbench.workloads.speech_data.synthetic import CLIPS_PER_WORD

LENGTHS = (1, 5, 20, 60, 200, 1_000, 100_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=0.63)
    parser.add_argument("--methods", nargs="+", default=["local_sgd", "ist"])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--clips", type=int, default=CLIPS_PER_WORD, help="clips of a word")
    arguments = parser.parse_args()
    target, sizes = arguments.target, (f"hidden={arguments.hidden}", f"clips_per_word={arguments.clips}")
    budget = ["--nodes", arguments.nodes, "--epochs", arguments.epochs, "--workload", "speech"]
    budget += [part for size in sizes for part in ("--workload-set", size)]
    print("| method | local_steps | final accuracy | train s | s to target | cluster s | MB sent per node |")
    print("| :--- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for method in arguments.methods:
        for length in arguments.lengths:
            row = run_cell("--method", method, "--set", f"local_steps={length}", *budget)
            there = next((level["train_s"] for level in row["targets"] if level["level"] == target), None)
            seconds = row["cluster"]["seconds"]
            cells = (
                method,
                f"{length:,}",
                f"{row['final']['accuracy']:.3f}",
                f"{row['train_s']:.2f}",
                "missed" if there is None else f"{there:.2f}",
                "no two rounds" if seconds is None else f"{seconds:.2f}",
                f"{row['bytes_sent_per_node'] / 1e6:.2f}",
            )
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
