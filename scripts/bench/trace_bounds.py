"""The memory of reading traces that are larger than any that istbench records, as a markdown table.

Each trace has two nodes, one of sends and one of receives alone: their matching takes the most memory. A process of
its own reads each, and its peak memory is compared with that before.

    python scripts/bench/trace_bounds.py --megabytes 4    # to try it
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from istbench.base.errors import UserError
from istbench.cluster.trace import EVENT, MARK, POST, RECEIVE, SEND
from istbench.cluster.trace_file import load_trace


def write(path: Path, megabytes: float) -> None:
    """Write a trace to `path` whose events unpack to so many MB."""
    count = int(megabytes * 1e6 / 2 / EVENT.itemsize)
    nodes = {}
    for rank, kind in enumerate((SEND, RECEIVE)):
        events = nodes[f"node{rank}"] = np.zeros(count, EVENT)
        events["code"], events["kind"], events["peer"] = POST, kind, 1 - rank
        events["op"] = events["match"] = np.arange(count)
        events["code"][-1], events["kind"][-1] = MARK, 0
    header = json.dumps({"version": 1, "meta": {"nodes": 2}}).encode()
    np.savez_compressed(path, allow_pickle=False, **nodes, header=np.frombuffer(header, np.uint8))


def read(path: Path) -> None:
    """Read the trace in `path`, and print the entries of a row."""
    before, started = _peak_mb(), time.process_time()
    try:
        load_trace(path)
        said = "read"
    except UserError as error:
        said = str(error).replace(str(path), path.name)
    print(f"{_peak_mb() - before:.0f} | {time.process_time() - started:.2f} | {said} |")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[20, 80, 400])
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read(given.read)
        return
    print("| events, MB | file, MB | memory more, MB | CPU, s | |\n| ---: | ---: | ---: | ---: | --- |")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.npz"
        for megabytes in given.megabytes:
            write(path, megabytes)
            command = [sys.executable, __file__, "--read", str(path)]
            row = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            print(f"| {megabytes:g} | {path.stat().st_size / 1e6:.1f} | {row}")


if __name__ == "__main__":
    main()
