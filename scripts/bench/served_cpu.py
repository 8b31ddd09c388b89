"""CPU seconds per step of `parameter_server` and `p3` over those of `ddp`, in traces and as measured.

One node with Adam; the methods take turns.

    python scripts/bench/served_cpu.py --repeats 1 --hidden 16 --steps 8 --clips 12 --methods ddp p3    # to try it
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from cells import run_cell
from spread import spread

from istbench.cluster.trace import COMPUTE, POST, WORK
from istbench.cluster.trace_file import load_trace
from istbench.workloads.speech_data.synthetic import CLIPS_PER_WORD

METHODS = ("ddp", "parameter_server", "p3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=METHODS, help="with ddp")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--clips", type=int, default=CLIPS_PER_WORD, help="clips of a word")
    arguments = parser.parse_args()
    rows: dict[str, list[tuple[float, float, float]]] = {method: [] for method in arguments.methods}
    for _ in range(arguments.repeats):
        for method in rows:
            rows[method].append(run(method, arguments))
    print("| method | train ms per step | CPU ms, training thread | others | CPU over ddp | train over ddp |")
    print("| :--- | ---: | ---: | ---: | ---: | ---: |")
    for method in rows:
        wall, own, others = (1e3 * statistics.median(figure) for figure in zip(*rows[method], strict=True))
        pairs = list(zip(rows[method], rows["ddp"], strict=True))
        cpu = [(mine[1] + mine[2]) / (ddp[1] + ddp[2]) for mine, ddp in pairs]
        train = [mine[0] / ddp[0] for mine, ddp in pairs]
        print(f"| {method} | {wall:.1f} | {own:.1f} | {others:.1f} | {spread(cpu, 2)} | {spread(train, 2)} |")


def run(method: str, arguments: argparse.Namespace) -> tuple[float, float, float]:
    """Train seconds per step, and CPU seconds per step in the trace, of the training thread and of the others."""
    with tempfile.TemporaryDirectory() as out:
        result = run_cell(
            "--method", method, "--workload", "speech", "--workload-set", f"hidden={arguments.hidden}",
            "--workload-set", f"clips_per_word={arguments.clips}", "--nodes", 1, "--steps", arguments.steps,
            "--set", "optimizer=adam", "--eval-every", arguments.steps, out=Path(out),
        )  # fmt: skip
        trace = load_trace(Path(result["run_dir"]) / "trace.npz")
    (events,) = trace.nodes
    own = events["seconds"][events["code"] == COMPUTE].sum()
    others = events["seconds"][(events["code"] == POST) & (events["kind"] == WORK)].sum()
    return result["train_s"] / result["steps"], float(own) / trace.steps, float(others) / trace.steps


if __name__ == "__main__":
    main()
