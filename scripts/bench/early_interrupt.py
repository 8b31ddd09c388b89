"""Send Ctrl-C to a starting command at many moments, and count how it ends.

The command is a training that lasts. As from a terminal, SIGINT goes to its whole process group. A good end has
exit status 130, and one line that says so. Before about 0.1 s, Python itself starts.

    python scripts/bench/early_interrupt.py --times 1 --within 0.5    # to try it
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

_RUN = ["run", "--workload", "toy", "--method", "ist", "--nodes", "2", "--epochs", "100000"]
_ENDS_S = 60.0


def outcome(after_s: float) -> str:
    """Start the command, interrupt it `after_s` seconds later, and describe its end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        process = subprocess.Popen(
            [sys.executable, "-m", "istbench", *_RUN, "--out", f"{scratch}/out"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=scratch,  # not the checkout, whose istbench Python would take
        )
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        try:
            _, said = process.communicate(timeout=_ENDS_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "lost: goes on"
    if "terminate called" in said:
        return "terminate called"
    if "Traceback" in said or "Exception ignored" in said:
        ours = "istbench/" in said
        return f"traceback {'of istbench' if ours else 'before istbench begins'}, status {process.returncode}"
    interrupted = [line for line in said.splitlines() if line.startswith("istbench: interrupted")]
    return f"status {process.returncode}, {len(interrupted)} line{'' if len(interrupted) == 1 else 's'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=60, help="number of starts")
    parser.add_argument("--within", type=float, default=3.0, help="the last moment, seconds after the start")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    for number in range(arguments.times):
        after_s = arguments.within * (number + 1) / arguments.times
        ended = outcome(after_s)
        counts[ended] += 1
        print(f"{after_s:.3f} s: {ended}", file=sys.stderr, flush=True)
    print("| end | starts |\n| --- | ---: |")
    for ended, count in counts.most_common():
        print(f"| {ended} | {count} |")


if __name__ == "__main__":
    main()
