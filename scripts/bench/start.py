"""Seconds of short commands, and CPU seconds of all their processes, as a markdown table.

A finished cell, 20 steps of toy, the check of a task file and a comparison of finished cells, beside an import of
torch. Each command runs once before it counts. With several checkouts, they take turns.

    python scripts/bench/start.py --times 1 --only torch    # to try it
    python scripts/bench/start.py --checkouts ../before .
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
METHODS = ("ist", "local_sgd", "ddp", "p3", "diloco")
TOY = ["--workload", "toy", "--steps", "20"]


def commands(nodes: list[int], cells: int) -> Iterator[tuple[str, list[str]]]:
    """Each command: what it is called, and its words. FRESH stands for a new folder."""
    yield "import torch", ["-c", "import torch"]
    cell = ["-m", "istbench", "run", *TOY, "--method", "ist", "--nodes", "2", "--out"]
    yield "a finished cell", [*cell, "finished"]
    for count in nodes:
        yield f"20 steps on {count} node{'s' if count > 1 else ''}", [*cell[:-2], str(count), "--out", "FRESH"]
    yield "check of a task file", ["-m", "istbench", "check", str(ROOT / "configs" / "tasks" / "table.py")]
    methods = METHODS[: max(1, cells // 2)]
    words = ["--methods", ",".join(methods), "--seeds", str(-(-cells // len(methods))), "--out", "compared"]
    yield f"compare of {cells} finished cells", ["-m", "istbench", "compare", "--quiet", *TOY, *words]


# It adopts the processes that a command leaves, such as its fork server, and waits for them too.
WATCH = """
import os, resource, subprocess, sys, time
from istbench.launch.processes.orphans import adopt_orphans
adopt_orphans()
started = time.perf_counter()
status = subprocess.call([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL)
seconds = time.perf_counter() - started
while True:
    try: os.wait()
    except ChildProcessError: break
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(seconds, used.ru_utime + used.ru_stime)
sys.exit(status)
"""


def measured(words: list[str], checkout: Path, folder: Path) -> tuple[float, float]:
    """Seconds of Python with these words, and CPU seconds of it and all that it started."""
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        done = subprocess.run(
            [sys.executable, "-c", WATCH, *(fresh if word == "FRESH" else word for word in words)],
            env={**os.environ, "PYTHONPATH": str(checkout), "ISTBENCH_CACHE": str(folder / "cache")},
            cwd=folder,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with status {done.returncode}: {done.stderr}")
    seconds, cpu = map(float, done.stdout.split())
    return seconds, cpu


def write_table(folder: Path) -> None:
    """The data that the task file reads."""
    folder.mkdir()
    rows = [f"{row % 7},{row % 5},{row % 3},{row % 2},{row % 3}" for row in range(300)]
    (folder / "table.csv").write_text("\n".join(["a,b,c,d,class", *rows]))


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkouts", type=Path, nargs="+", default=[ROOT], help="folders with istbench/ inside")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--cells", type=int, default=10, help="finished cells of a comparison")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default="", help="commands with this in their names")
    arguments = parser.parse_args()
    all_of_them = list(commands(arguments.nodes, arguments.cells))
    wanted = [one for one in all_of_them if arguments.only in one[0]]
    if not wanted:
        parser.error(f"--only {arguments.only!r} is in no name: {', '.join(name for name, _ in all_of_them)}")
    with tempfile.TemporaryDirectory() as scratch:
        print("| command | checkout | seconds, median [min-max] | CPU seconds |\n| --- | --- | ---: | ---: |")
        folders = {checkout: Path(scratch, str(number)) for number, checkout in enumerate(arguments.checkouts)}
        for folder in folders.values():
            folder.mkdir()
            write_table(folder / "data")
        for name, words in wanted:
            found = defaultdict[Path, list[tuple[float, float]]](list)
            for turn in range(-1, arguments.times):
                for checkout, folder in folders.items():
                    result = measured(words, checkout.resolve(), folder)
                    if turn >= 0:
                        found[checkout].append(result)
            for checkout, results in found.items():
                seconds, cpu = zip(*results, strict=True)
                print(f"| {name} | {checkout} | {spread(list(seconds))} | {spread(list(cpu))} |", flush=True)


if __name__ == "__main__":
    main()
