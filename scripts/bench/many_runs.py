"""Seconds and memory of the commands over very many runs, as a markdown table.

The script trains each method once on each number of nodes, on the toy workload. It then resolves a suite of many
learning rates and seeds of them. Each cell becomes a finished run under its own name, with the curve and the trace
of the trained run, but other values and other seconds of computing. Each command runs in a process of its own.

    python scripts/bench/many_runs.py --methods ddp --rates 1 --nodes 2 --steps 40 --only resolve,map    # to try it
"""

import argparse
import dataclasses
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from cells import run_command

from istbench.base.options.suite import read_suite
from istbench.cluster.trace_file import load_trace, save_trace
from istbench.launch.cells import resolve
from istbench.results.events import Evaluation
from istbench.results.header import Header
from istbench.results.load import Run, load_runs
from istbench.results.store import RunDirectory

_POLL_S = 0.01
_RESOLVE = """
import sys
from pathlib import Path
from istbench.launch.cells import resolve
from istbench.base.options.suite import read_suite
resolve.prepare_cells(read_suite(Path(sys.argv[1]))[0].requests(), lambda *_: None)
"""


def suite_text(methods: Sequence[str], rates: int, nodes: Sequence[int], seeds: int, steps: int) -> str:
    """A suite of the toy workload with `rates` learning rates of each of `methods`."""
    listed = [
        f'{{method = "{method}", lr = {0.1 + number / 1000:g}}}' for number in range(rates) for method in methods
    ]
    return (
        f'workload = "toy"\nmethods = [{", ".join(listed)}]\nnodes = {list(nodes)}\nseeds = {seeds}\n'
        f"[run]\nsteps = {steps}\neval_every = {max(1, steps // 20)}\nthreads = 1\n"
    )


def write_runs(cells: Sequence[Header], trained: Sequence[Run], results: Path) -> None:
    """Write a finished run into `results` for each of `cells`, by the run like it among `trained`."""
    like = {(run.header.method, run.header.nodes): run for run in trained}
    for cell in cells:
        run = like[cell.method, cell.nodes]
        directory, rng = RunDirectory.of(results, cell.cell), random.Random(cell.cell)
        pace, better = rng.uniform(0.9, 1.1), rng.uniform(0.97, 1.03)
        result = run.header.result
        assert result is not None
        events = [
            _varied(event, pace, better) if isinstance(event, Evaluation) else event
            for event in run.directory.events()
        ]
        final = [event for event in events if isinstance(event, Evaluation)][-1].metrics
        directory.create(
            msgspec.structs.replace(
                cell,
                status="done",
                result=msgspec.structs.replace(result, train_s=result.train_s * pace, final=final),
                started_at=run.header.started_at,
                finished_at=run.header.finished_at,
            )
        )
        directory.events_jsonl.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
        trace, noise = load_trace(run.directory.trace), np.random.default_rng(rng.getrandbits(32))
        for node in trace.nodes:
            node["seconds"] *= pace * noise.uniform(0.95, 1.05, len(node))
        save_trace(trace, directory.trace)


def _varied(event: Evaluation, pace: float, better: float) -> Evaluation:
    metrics = {name: value and min(1.0, value * better) for name, value in event.metrics.items()}
    return msgspec.structs.replace(event, train_s=event.train_s * pace, wall_s=event.wall_s * pace, metrics=metrics)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A command that ran: its seconds, the peak memory of its process in MB, and its lines on standard error."""

    seconds: float
    megabytes: float
    lines: int


def measure(words: Sequence[str], limit: float) -> Measured:
    """Run `words` for at most `limit` seconds."""
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
        late, megabytes = False, 0.0
        while process.poll() is None:
            # After its end, the system knows only the larger one of its own peak and that of this process.
            megabytes = max(megabytes, _peak_megabytes(process.pid))
            if not late and time.perf_counter() - started > limit:
                late = True
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        seconds = time.perf_counter() - started
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    if process.returncode and not late:
        raise SystemExit("\n".join([f"failed: {' '.join(words)}", *lines[-5:]]))
    return Measured(math.inf if late else seconds, megabytes, len(lines))


def _peak_megabytes(pid: int) -> float:
    """The peak of the resident memory of process `pid` so far; 0 after its end."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def commands(suite: Path, results: Path) -> dict[str, list[str]]:
    """The measured commands, by a name."""
    istbench, there, page = [sys.executable, "-m", "istbench"], str(results), str(results / "page.html")
    return {
        "resolve": [sys.executable, "-c", _RESOLVE, str(suite)],
        "report": [*istbench, "report", there, "--no-pictures"],
        "report --format json": [*istbench, "report", there, "--no-pictures", "--format", "json"],
        "report --format csv": [*istbench, "report", there, "--no-pictures", "--format", "csv"],
        "report --html": [*istbench, "report", there, "--no-pictures", "--html", page],
        "map": [*istbench, "map", there, "--no-pictures"],
        "replay": [*istbench, "replay", there, "--no-pictures", "--bandwidth", "100mbit,1gbit,10gbit"],
        "compare": [*istbench, "compare", str(suite), "--out", there],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="ddp,local_sgd,ist,p3")
    parser.add_argument("--nodes", default="2,4", help="numbers of nodes")
    parser.add_argument("--rates", type=int, default=25, help="learning rates of each method")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a command is killed")
    parser.add_argument("--only", default="", help="names of the measured commands, separated by commas")
    parser.add_argument("--keep", type=Path, help="make the runs in this folder, or take those there")
    arguments = parser.parse_args()
    methods, nodes = arguments.methods.split(","), [int(count) for count in arguments.nodes.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        few, suite, results = folder / "few.toml", folder / "suite.toml", folder / "results"
        suite.write_text(suite_text(methods, arguments.rates, nodes, arguments.seeds, arguments.steps))
        if not results.exists():
            few.write_text(suite_text(methods, 1, nodes, 1, arguments.steps))
            run_command("compare", few, "--out", folder / "trained")
            cells = resolve.prepare_cells(read_suite(suite)[0].requests(), lambda *_: None)
            write_runs(cells, load_runs(folder / "trained")[0], results)
        count = sum(1 for _ in (results / "runs").iterdir())
        print(f"{count:,} runs\n\n| command | seconds | peak memory, MB | lines on stderr | page, MB |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for name, words in commands(suite, results).items():
            if arguments.only and name not in arguments.only.split(","):
                continue
            page = {"report --html": results / "page.html", "compare": results / "report" / "page.html"}.get(name)
            found = measure(words, arguments.limit)
            seconds = f"{found.seconds:.1f}" if math.isfinite(found.seconds) else f"> {arguments.limit:g}"
            size = f"{page.stat().st_size / 1e6:.1f}" if page is not None and page.exists() else ""
            print(f"| {name} | {seconds} | {found.megabytes:,.0f} | {found.lines:,} | {size} |", flush=True)


if __name__ == "__main__":
    main()
