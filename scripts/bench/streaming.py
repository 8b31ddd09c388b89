"""The effect of streaming on the exchange of IST: bytes per round and exposed communication, replayed.

Each cell is a short training of the speech network, ordinary and streaming in turns, `--repeats` times, replayed on
a cluster at several bandwidths. The table has medians over the repeats, and the ratio of each pair of turns.
Communication and idle are the shares of time in which nodes wait. Streaming only adds work: where it computes less
than the ordinary exchange in the median, the machine changed its speed, and a line says so. `--hidden 4096
--nodes 2,4,8` gives the full table.

    python scripts/bench/streaming.py --hidden 16 --nodes 2 --local-steps 2 --clips 12 --repeats 1    # to try it
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cells import run_cell
from spread import spread

from istbench.base.units import parse_bandwidth
from istbench.cluster.clock import cluster_time
from istbench.cluster.profile import ClusterProfile, select_clusters
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--nodes", default="2,4,8")
    parser.add_argument("--local-steps", type=int, default=20)
    parser.add_argument("--flight-steps", type=int, default=1)
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds; the first is not recorded, and a sample has three"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind, in turns")
    parser.add_argument("--clips", type=int, default=60, help="clips of a word")
    parser.add_argument("--cluster", default="m5.2xlarge")
    parser.add_argument(
        "--bandwidth", default="", help="bandwidths such as 300mbit,1gbit; default: that of the cluster"
    )
    arguments = parser.parse_args()
    bandwidths = [parse_bandwidth(text) for text in filter(None, arguments.bandwidth.split(","))]
    ((_, profiles),) = select_clusters([arguments.cluster], bandwidths).items()
    print(
        "| nodes | ist | MB per round | of ordinary | replayed on | step, ms | ordinary over it, median [min-max] "
        "| computing a step, ms | communication | idle |"
    )
    print("| ---: | :--- | ---: | ---: | :--- | ---: | ---: | ---: | ---: | ---: |")
    doubts = []
    for nodes in map(int, arguments.nodes.split(",")):
        runs = in_turns(arguments, nodes)
        for profile in profiles:
            times = {kind: [step_of(turn, profile) for turn in turns] for kind, turns in runs.items()}
            for streaming, steps in times.items():
                print(row(nodes, streaming, profile.name, runs, times, steps, arguments.rounds), flush=True)
            less = computing(times[True]) / computing(times[False])
            if less < 1:
                doubts.append(f"{nodes} nodes, {profile.name}: {less:.2f}")
    for doubt in doubts:
        print(f"\nCareful: streaming only adds work, but computed less than ordinary ({doubt}). Record again.")


Turn = tuple[dict[str, Any], Trace]


class Step(NamedTuple):
    """Seconds of a local step on a cluster, the seconds of computing in it, and the shares of waiting."""

    seconds: float
    computing: float
    communication: float
    idle: float


def in_turns(arguments: argparse.Namespace, nodes: int) -> dict[bool, list[Turn]]:
    """The runs of each kind, streaming or not; the kind that goes first alternates."""
    runs: dict[bool, list[Turn]] = {False: [], True: []}
    for repeat in range(arguments.repeats):
        for streaming in (False, True) if repeat % 2 == 0 else (True, False):
            runs[streaming].append(trained(arguments, nodes, streaming=streaming))
    return runs


def step_of(turn: Turn, profile: ClusterProfile) -> Step:
    """A local step of `turn` on `profile`."""
    result, trace = turn
    time = cluster_time(trace, profile, [result["steps"]])
    seconds = time.seconds[0] / result["steps"]
    return Step(seconds, time.compute * seconds, time.communication, time.idle)


def computing(steps: Sequence[Step]) -> float:
    """The median of the seconds of computing."""
    return statistics.median(step.computing for step in steps)


def row(
    nodes: int,
    streaming: bool,
    profile: str,
    runs: dict[bool, list[Turn]],
    times: dict[bool, list[Step]],
    steps: Sequence[Step],
    rounds: int,
) -> str:
    sent, ordinary = (
        statistics.median(result["bytes_sent_per_node"] / rounds for result, _ in runs[kind])
        for kind in (streaming, False)
    )
    ratios = [other.seconds / own.seconds for other, own in zip(times[False], steps, strict=True)]
    cells = [
        nodes,
        "streaming" if streaming else "ordinary",
        f"{sent / 1e6:.2f}",
        f"{sent / ordinary:.3f}",
        profile,
        f"{1e3 * statistics.median(step.seconds for step in steps):.2f}",
        spread(ratios, 2),
        f"{1e3 * computing(steps):.2f}",
        f"{statistics.median(step.communication for step in steps):.1%}",
        f"{statistics.median(step.idle for step in steps):.1%}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
