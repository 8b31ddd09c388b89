"""CPU seconds per step of `parameter_server` and `p3` over those of `ddp`, in traces and as measured.

One node with Adam; the methods take turns. `python scripts/bench/served_cpu.py [--repeats N]`
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from istbench.cluster.trace import COMPUTE, POST, WORK
from istbench.cluster.trace_file import load_trace

METHODS = ("ddp", "parameter_server", "p3")
STEPS = 80


def main() -> None:
    """Print medians over the repeats, and ratios to `ddp` in the same repeat with their range."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    rows: dict[str, list[tuple[float, float, float]]] = {method: [] for method in METHODS}
    for _ in range(parser.parse_args().repeats):
        for method in METHODS:
            rows[method].append(run(method))
    print("| method | train ms per step | CPU ms, training thread | others | CPU over ddp | train over ddp |")
    print("| :--- | ---: | ---: | ---: | ---: | ---: |")
    for method in METHODS:
        wall, own, others = (1e3 * statistics.median(figure) for figure in zip(*rows[method], strict=True))
        pairs = list(zip(rows[method], rows["ddp"], strict=True))
        cpu = [(mine[1] + mine[2]) / (ddp[1] + ddp[2]) for mine, ddp in pairs]
        train = [mine[0] / ddp[0] for mine, ddp in pairs]
        print(f"| {method} | {wall:.1f} | {own:.1f} | {others:.1f} | {spread(cpu)} | {spread(train)} |")


def run(method: str) -> tuple[float, float, float]:
    """Train seconds per step, and CPU seconds per step in the trace, of the training thread and of the others."""
    with tempfile.TemporaryDirectory() as out:
        options = ("--method", method, "--workload", "speech", "--workload-set", "hidden=1024", "--nodes", "1")
        budget = ("--steps", STEPS, "--set", "optimizer=adam", "--eval-every", STEPS, "--json", "--out", out)
        command = [sys.executable, "-m", "istbench", "run", *options, *map(str, budget)]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        trace = load_trace(Path(result["run_dir"]) / "trace.npz")
    (events,) = trace.nodes
    own = events["seconds"][events["code"] == COMPUTE].sum()
    others = events["seconds"][(events["code"] == POST) & (events["kind"] == WORK)].sum()
    return result["train_s"] / result["steps"], float(own) / trace.steps, float(others) / trace.steps


def spread(ratios: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"


if __name__ == "__main__":
    main()
