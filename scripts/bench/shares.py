"""Seconds to a target with a slow node in a lab, with and without `--shares`, as a markdown table (Linux, root).

    python scripts/bench/shares.py results/shares    # the table in results/bench.md
    python scripts/bench/shares.py results/recorded --data speech_commands --hidden 4096 --epochs 10 --level 0.75
    python scripts/bench/shares.py TARGET --tiny --cases shares    # to try it, as root

Each method trains on equal nodes, with a slow node and equal shares, with shares by the true speeds, and with
measured shares. All seeds of a row have the same network. A cell that is finished is not run again, so the command
resumes. The machine must be idle. The wait is the share of the train seconds in which a node waits for others or
for the network, as the mean over nodes.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cells import run_command
from spread import spread

from istbench.results.load import Run, load_run
from istbench.results.store import RunDirectory

CASES = {"equal": "no slow node", "slow": "a slow node", "shares": "shares by speed", "measured": "--shares speed"}


@dataclass(frozen=True)
class Row:
    """The runs of a method in a case."""

    method: str
    case: str
    runs: Sequence[Run]

    def seconds(self, level: float) -> list[float]:
        """Train seconds to `level` of the seeds that reached it."""
        found = [run.reached(level) for run in self.runs]
        return [there.seconds for there in found if there is not None]

    @property
    def wait(self) -> float:
        """The share of the train seconds that nodes wait."""
        nodes = [node for run in self.runs if run.header.result for node in run.header.result.node_seconds]
        waited = sum(node.waiting_s for node in nodes)
        return waited / max(1e-9, waited + sum(node.computing_s for node in nodes))


def trained(arguments: argparse.Namespace, method: str, case: str, seed: int) -> Run:
    """One cell, trained in the lab or read."""
    speeds = arguments.speeds.split(",")
    # Equal nodes have control groups too, as the others do.
    there = ",".join(["1"] * len(speeds)) if case == "equal" else arguments.speeds
    lab = ["lab", "--nodes", len(speeds), "--bandwidth", arguments.bandwidth, "--speeds", there]
    shares = {"shares": ["--shares", arguments.speeds], "measured": ["--shares", "speed"]}.get(case, [])
    sizes = [
        f"--workload-set={size}" for size in (f"hidden={arguments.hidden}", f"clips_per_word={arguments.clips}")
    ]
    work = ["--workload", "speech", *sizes, "--epochs", arguments.epochs, "--eval-every", arguments.eval_every]
    if arguments.tiny:
        work = ["--workload", "toy", "--steps", 9]
    data = [] if arguments.data is None else ["--data", arguments.data]
    cell = [*work, "--method", method, "--seed", seed, "--out", arguments.results]
    found = json.loads(run_command(*lab, "run", "--json", *cell, *data, *shares))
    return load_run(RunDirectory.of(arguments.results, found["cell"]))


def shown(row: Row, level: float, fastest: Row | None) -> str:
    """The line of `row`."""
    seconds = row.seconds(level)
    over = fastest.seconds(level) if fastest is not None else []
    ratio = f"{statistics.median(seconds) / statistics.median(over):.2f}" if seconds and over else ""
    cells = [
        row.method,
        CASES[row.case],
        spread(seconds, 1) if seconds else "",
        f"{len(seconds)} of {len(row.runs)}",
        ratio,
        f"{row.wait:.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="folder of the runs")
    parser.add_argument("--data", help="directory of real data")
    parser.add_argument("--hidden", type=int, default=512, help="units of the speech network")
    parser.add_argument("--clips", type=int, default=200, help="synthetic clips of each word")
    parser.add_argument("--methods", default="local_sgd,ist,ddp")
    parser.add_argument("--cases", default="equal,slow,shares", help=f"of {', '.join(CASES)}")
    parser.add_argument("--speeds", default="1,0.5", help="of the nodes")
    parser.add_argument("--bandwidth", default="3gbit")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=float, default=8)
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--level", type=float, default=0.6, help="of the accuracy to reach")
    parser.add_argument("--tiny", action="store_true", help="9 steps of ddp on the toy workload, one seed")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.methods, arguments.seeds = "ddp", 1
    rows = {
        (method, case): [trained(arguments, method, case, seed) for seed in range(arguments.seeds)]
        for method in arguments.methods.split(",")
        for case in arguments.cases.split(",")
    }
    found = [Row(method, case, runs) for (method, case), runs in rows.items()]
    print(f"speeds {arguments.speeds}, {arguments.bandwidth}, accuracy {arguments.level}\n")
    print("| method | nodes | s to the target, median [min-max] | reached | of no slow node | wait |")
    print("| :--- | :--- | ---: | ---: | ---: | ---: |")
    for row in found:
        whole = next((other for other in found if (other.method, other.case) == (row.method, "equal")), None)
        print(shown(row, arguments.level, whole))


if __name__ == "__main__":
    main()
