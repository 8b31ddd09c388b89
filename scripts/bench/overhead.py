"""A training step under istbench against the same step in a bare loop, in pairs, as a markdown table.

One node runs against a plain loop. n nodes of `ddp` run against a bare DistributedDataParallel script under
torchrun. `diloco` and `sparseloco` run against short scripts of these methods, with plain SGD and rounds of
`--local-steps`. Model, batches, data and threads are the same (see bare_loops.py). A pair runs one after the other.
The script takes the ratio of each pair, because the speed of a shared machine drifts.

    python scripts/bench/overhead.py --cells ddp:2:1 --hidden 16 --pairs 1 --steps 1 --clips 12    # to try it
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from bare_loops import ROUNDS
from cells import run_cell

from istbench.workloads.speech_data.synthetic import CLIPS_PER_WORD

BARE = Path(__file__).with_name("bare_loops.py")
CELLS = "local_sgd:1:2,ddp:1:2,ist:1:2,ddp:4:1,diloco:1:2,sparseloco:1:2,diloco:2:1,sparseloco:2:1"


def bare_seconds(nodes: int, flags: list[str]) -> float:
    """Seconds of the steps without istbench."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nodes)]
    command = [*(start if nodes > 1 else [sys.executable]), str(BARE), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{BARE.name} failed: {done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--local-steps", type=int, default=20, help="of the rounds of diloco and sparseloco")
    parser.add_argument("--cells", default=CELLS, help="METHOD:NODES:THREADS, separated by commas")
    parser.add_argument("--clips", type=int, default=CLIPS_PER_WORD, help="clips of a word")
    arguments = parser.parse_args()
    hidden, steps, clips = arguments.hidden, arguments.steps, arguments.clips
    print("| method | nodes | threads | bare ms per step | istbench ms per step | ratio, median [min-max] |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for cell in arguments.cells.split(","):
        method, nodes, threads = cell.split(":")
        rounds = method in ROUNDS
        flags = ["--steps", str(steps), "--threads", threads, "--hidden", str(hidden), "--clips", str(clips)]
        flags += ["--method", method, "--local-steps", str(arguments.local_steps)] if rounds else []
        own = ["--set", "optimizer=sgd", "--set", f"local_steps={arguments.local_steps}"] if rounds else []
        bare, ours = [], []
        for _ in range(arguments.pairs):
            bare.append(bare_seconds(int(nodes), flags))
            result = run_cell(
                "--workload", "speech", "--method", method, "--nodes", nodes, "--threads", threads,
                "--steps", steps, "--workload-set", f"hidden={hidden}", "--workload-set", f"clips_per_word={clips}",
                *own,
            )  # fmt: skip
            ours.append(result["train_s"])
        ratios = [b / a for a, b in zip(bare, ours, strict=True)]
        bare_ms, our_ms = (1000 * statistics.median(times) / steps for times in (bare, ours))
        spread = f"{statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]"
        print(f"| {method} | {nodes} | {threads} | {bare_ms:.1f} | {our_ms:.1f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
