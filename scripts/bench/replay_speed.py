"""The speed of replays, as a markdown table. The trace is like data parallel's: four all-reduces in a round.

The first replay of a process loads the compiled simulation, or compiles it if this machine never did.

    python scripts/bench/replay_speed.py --nodes 2 --rounds 40 --times 1    # to try it
"""

import argparse
import statistics
import time

from istbench.cluster.profile import load_profile
from istbench.cluster.simulator import replay
from istbench.cluster.trace import Trace
from istbench.cluster.trace_builder import TraceBuilder, merge

SAMPLED_ROUNDS, BUCKETS = 20, 4


def data_parallel_trace(nodes: int) -> Trace:
    """A trace like that of `ddp` for a model in four buckets."""
    builder = TraceBuilder()
    for _ in range(SAMPLED_ROUNDS):
        posted = []
        for _ in range(BUCKETS):
            builder.compute(0.003)
            posted.append(builder.post("all_reduce", 8_000_000))
        for operation in posted:
            builder.wait(operation)
        builder.mark("round")
        builder.mark("step")
    return merge([builder.to_arrays()] * nodes, gflops=100.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8, 64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=160)
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    profile = load_profile("m5.2xlarge")
    started = time.perf_counter()
    replay(data_parallel_trace(2), profile, rounds=1)
    print(f"First replay of this process: {time.perf_counter() - started:.1f} s.\n")
    print("| nodes | rounds | seconds, median [min-max] | trace events | messages | both a second |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for nodes in arguments.nodes:
        trace, seconds = data_parallel_trace(nodes), []
        for _ in range(arguments.times):
            started = time.perf_counter()
            found = replay(trace, profile, rounds=arguments.rounds)
            seconds.append(time.perf_counter() - started)
        median = statistics.median(seconds)
        spread = f"{median:.2f} [{min(seconds):.2f}-{max(seconds):.2f}]"
        events = sum(map(len, trace.nodes)) * arguments.rounds // SAMPLED_ROUNDS
        rate = (events + found.messages) / median
        print(f"| {nodes} | {arguments.rounds} | {spread} | {events} | {found.messages} | {rate:,.0f} |")


if __name__ == "__main__":
    main()
