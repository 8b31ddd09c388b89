"""The effect of streaming on the exchange of IST: bytes per round and exposed communication, replayed.

Each cell is a short training of the speech network, ordinary and streaming in turns, replayed on a cluster at
several bandwidths. Communication and idle are the shares of time in which nodes wait. `--hidden 4096 --nodes 2,4,8`
gives the full table.

    python scripts/bench/streaming.py --hidden 16 --nodes 2 --local-steps 2 --clips 12    # to try it
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from cells import run_cell

from istbench.cluster.clock import cluster_time
from istbench.cluster.profile import parse_bandwidth, select_clusters
from istbench.cluster.trace import Trace
from istbench.cluster.trace_file import load_trace
from istbench.results.store import RunDirectory


def trained(arguments: argparse.Namespace, nodes: int, *, streaming: bool) -> tuple[dict[str, Any], Trace]:
    """The result of some rounds, and their trace."""
    steps = arguments.rounds * arguments.local_steps
    options: list[object] = ["--set", f"local_steps={arguments.local_steps}"]
    method = "streaming_ist" if streaming else "ist"
    if streaming:
        options += ["--set", f"flight_steps={arguments.flight_steps}"]
    with tempfile.TemporaryDirectory() as out:
        result = run_cell(
            "--workload", "speech", "--method", method, "--nodes", nodes, "--steps", steps, "--eval-every", steps,
            "--workload-set", f"hidden={arguments.hidden}", "--workload-set", f"layers={arguments.layers}",
            "--workload-set", f"clips_per_word={arguments.clips}", *options, out=Path(out),
        )  # fmt: skip
        return result, load_trace(RunDirectory(Path(result["run_dir"])).trace)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--nodes", default="2,4,8")
    parser.add_argument("--local-steps", type=int, default=20)
    parser.add_argument("--flight-steps", type=int, default=1)
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds; the first is not recorded, and a sample has three"
    )
    parser.add_argument("--clips", type=int, default=60, help="clips of a word")
    parser.add_argument("--cluster", default="m5.2xlarge")
    parser.add_argument(
        "--bandwidth", default="", help="bandwidths such as 300mbit,1gbit; default: that of the cluster"
    )
    arguments = parser.parse_args()
    bandwidths = [parse_bandwidth(text) for text in filter(None, arguments.bandwidth.split(","))]
    ((_, profiles),) = select_clusters([arguments.cluster], bandwidths).items()
    print("| nodes | ist | MB per round | of ordinary | replayed on | step, ms | compute | communication | idle |")
    print("| ---: | :--- | ---: | ---: | :--- | ---: | ---: | ---: | ---: |")
    for nodes in map(int, arguments.nodes.split(",")):
        ordinary = 0.0
        for streaming in (False, True):
            result, trace = trained(arguments, nodes, streaming=streaming)
            sent = result["bytes_sent_per_node"] / arguments.rounds
            ordinary = ordinary or sent
            for profile in profiles:
                time = cluster_time(trace, profile, [result["steps"]])
                shares = " | ".join(f"{share:.1%}" for share in (time.compute, time.communication, time.idle))
                print(
                    f"| {nodes} | {'streaming' if streaming else 'ordinary'} | {sent / 1e6:.2f} "
                    f"| {sent / ordinary:.3f} | {profile.name} | {1e3 * time.seconds[0] / result['steps']:.2f} "
                    f"| {shares} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
