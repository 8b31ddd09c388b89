"""Seconds to a target with a slow node in a lab, with and without `--shares`, as a markdown table (Linux, root).

    python scripts/bench/shares.py results/shares --data speech_commands
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
from typing import Any

from cells import run_command
from spread import spread

CASES = {"equal": "no slow node", "slow": "a slow node", "shares": "shares by speed", "measured": "--shares speed"}


@dataclass(frozen=True)
class Row:
    """The runs of a method in a case, as `run --json` prints them."""

    method: str
    case: str
    runs: Sequence[dict[str, Any]]

    def seconds(self, level: float) -> list[float]:
        """Train seconds to `level` of the seeds that reached it."""
        found = [there for run in self.runs for there in run["targets"] if there["level"] == level]
        return [there["train_s"] for there in found if there["train_s"] is not None]

    @property
    def wait(self) -> float:
        """The share of the train seconds that nodes wait."""
        nodes = [node for run in self.runs for node in run["node_seconds"]]
        waited = sum(node["waiting_s"] for node in nodes)
        return waited / max(1e-9, waited + sum(node["computing_s"] for node in nodes))


def trained(arguments: argparse.Namespace, method: str, case: str, seed: int) -> dict[str, Any]:
    """One cell, trained in the lab or read."""
    speeds = arguments.speeds.split(",")
    # Equal nodes have control groups too, as the others do.
    there = ",".join(["1"] * len(speeds)) if case == "equal" else arguments.speeds
    lab = ["lab", "--nodes", len(speeds), "--bandwidth", arguments.bandwidth, "--speeds", there]
    shares = {"shares": ["--shares", arguments.speeds], "measured": ["--shares", "speed"]}.get(case, [])
    budget = ["--epochs", arguments.epochs] if arguments.steps is None else ["--steps", arguments.steps]
    data = [] if arguments.data is None else ["--data", arguments.data]
    cell = ["--workload", arguments.workload, "--method", method, "--seed", seed, "--out", arguments.results]
    printed = run_command(*lab, "run", "--json", *cell, *budget, *data, *shares)
    found: dict[str, Any] = json.loads(printed)
    return found


def hardest(rows: Sequence[Row]) -> float | None:
    """The hardest level that every seed of every row reached, else the hardest that one reached."""
    levels = [there["level"] for there in rows[0].runs[0]["targets"]]  # the easiest first
    everybody = [level for level in levels if all(len(row.seconds(level)) == len(row.runs) for row in rows)]
    somebody = [level for level in levels if any(row.seconds(level) for row in rows)]
    return next(reversed(everybody or somebody), None)


def shown(row: Row, level: float | None, fastest: Row | None) -> str:
    """The line of `row`."""
    seconds = [] if level is None else row.seconds(level)
    over = fastest.seconds(level) if fastest is not None and level is not None else []
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
    parser.add_argument("--workload", default="speech")
    parser.add_argument("--data", help="directory of real data")
    parser.add_argument("--methods", default="ddp,local_sgd,ist")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--speeds", default="1,0.5", help="of the nodes")
    parser.add_argument("--bandwidth", default="1gbit")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--tiny", action="store_true", help="9 steps of ddp on the toy workload, one seed")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.workload, arguments.methods, arguments.seeds, arguments.steps = "toy", "ddp", 1, 9
    rows = {
        (method, case): [trained(arguments, method, case, seed) for seed in range(arguments.seeds)]
        for method in arguments.methods.split(",")
        for case in arguments.cases.split(",")
    }
    found = [Row(method, case, runs) for (method, case), runs in rows.items()]
    level = hardest(found)
    print(f"{arguments.workload}, speeds {arguments.speeds}, {arguments.bandwidth}, target {level}\n")
    print("| method | nodes | s to the target, median [min-max] | reached | of no slow node | wait |")
    print("| :--- | :--- | ---: | ---: | ---: | ---: |")
    for row in found:
        whole = next((other for other in found if (other.method, other.case) == (row.method, "equal")), None)
        print(shown(row, level, whole), flush=True)


if __name__ == "__main__":
    main()
