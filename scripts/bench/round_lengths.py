"""Rounds of 1 to 100,000 local steps at one budget: accuracy, seconds and bytes.

No round is free: an exchange closes a round that is longer than the budget, on the clock. `python
scripts/bench/round_lengths.py`
"""

import argparse

from cells import run_cell

LENGTHS = (1, 5, 20, 60, 200, 1_000, 100_000)
BUDGET = ("--nodes", 4, "--epochs", 6, "--workload", "speech", "--workload-set", "hidden=512")


def main() -> None:
    """Print a row for each method and length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=float, default=0.63)
    target = parser.parse_args().target
    print("| method | local_steps | final accuracy | train s | s to target | cluster s | MB sent per node |")
    print("| :--- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for method in ("local_sgd", "ist"):
        for length in LENGTHS:
            row = run_cell("--method", method, "--set", f"local_steps={length}", *BUDGET)
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
