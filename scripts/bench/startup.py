"""Seconds from the start of the command to the first finished training step, as a markdown table.

The data is in the cache. The script detects the first step in the counter that workers share with the launcher.

    python scripts/bench/startup.py --nodes 2 --times 1 --clips 12 --hidden 16    # to try it
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from istbench.launch.processes.failures import read_progress
from istbench.workloads.speech_data.synthetic import CLIPS_PER_WORD


def seconds_to_first_step(nodes: int, clips: int, hidden: int) -> float:
    """Start a run, wait for its first step, and end it."""
    with tempfile.TemporaryDirectory() as scratch:
        flags = ["--method", "ist", "--workload", "speech", "--nodes", str(nodes), "--out", f"{scratch}/out"]
        flags += ["--workload-set", f"clips_per_word={clips}", "--workload-set", f"hidden={hidden}"]
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "istbench", "run", *flags],
            env={**os.environ, "TMPDIR": scratch},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not any(read_progress(path).step for path in Path(scratch).glob("istbench-*")):
                if process.poll() is not None:
                    raise SystemExit(f"istbench ended with status {process.returncode}")
                time.sleep(0.01)
            return time.perf_counter() - started
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--clips", type=int, default=CLIPS_PER_WORD, help="clips of a word")
    parser.add_argument("--hidden", type=int, default=4096)
    arguments = parser.parse_args()
    print("| nodes | seconds to the first step, median [min-max] |\n| ---: | ---: |")
    for nodes in arguments.nodes:
        sizes = arguments.clips, arguments.hidden
        seconds = [seconds_to_first_step(nodes, *sizes) for _ in range(arguments.times)]
        print(f"| {nodes} | {statistics.median(seconds):.1f} [{min(seconds):.1f}-{max(seconds):.1f}] |", flush=True)


if __name__ == "__main__":
    main()
