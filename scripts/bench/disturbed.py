"""`cluster_s` and its warning for the same cell, on a quiet machine and beside a busy loop on every core.

`python scripts/bench/disturbed.py [--repeats N]`
"""

import argparse
import subprocess
import sys

from cells import run_cell

from istbench.machine import cores

CELL = ("--method", "ist", "--workload", "speech", "--workload-set", "hidden=1024", "--nodes", 2, "--epochs", 2)
LOOP = [sys.executable, "-c", "while True: pass"]


def main() -> None:
    """Print a row for each run, quiet and disturbed in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    print("| machine | train s | cluster s | warning |")
    print("| :--- | ---: | ---: | :--- |")
    for _ in range(parser.parse_args().repeats):
        for busy in (False, True):
            loops = [subprocess.Popen(LOOP) for _ in range(cores())] if busy else []
            try:
                row = run_cell(*CELL)
            finally:
                for loop in loops:
                    loop.kill()
            name, cluster = "a loop on every core" if busy else "quiet", row["cluster"]
            print(
                f"| {name} | {row['train_s']:.2f} | {cluster['seconds']:.2f} | {cluster['doubt'] or '-'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
