"""`cluster_s` and its warning for the same cell, on a quiet machine and beside a busy loop on every core.

python scripts/bench/disturbed.py --hidden 16 --epochs 60 --clips 12 --repeats 1    # to try it
"""

import argparse
import subprocess
import sys

from cells import run_cell

from istbench.base.machine import cores
from istbench.workloads.speech_data.synthetic import CLIPS_PER_WORD

LOOP = [sys.executable, "-c", "while True: pass"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--clips", type=int, default=CLIPS_PER_WORD, help="clips of a word")
    arguments = parser.parse_args()
    sizes = [f"hidden={arguments.hidden}", "--workload-set", f"clips_per_word={arguments.clips}"]
    cell = ["--method", "ist", "--workload", "speech", "--nodes", 2, "--epochs", arguments.epochs]
    print("| machine | train s | cluster s | warning |")
    print("| :--- | ---: | ---: | :--- |")
    for _ in range(arguments.repeats):
        for busy in (False, True):
            loops = [subprocess.Popen(LOOP) for _ in range(cores())] if busy else []
            try:
                row = run_cell(*cell, "--workload-set", *sizes)
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
