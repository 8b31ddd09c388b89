"""One process that trains cell after cell under faults, and must neither grow nor end in another result.

python scripts/bench/soak.py --methods ddp --runs 1 --steps 40 --every 1 --out TARGET    # to try it

The runs of all methods follow one another in this process, on two and three nodes, with `--restarts`. Faults hit
them at random moments, on average one every `--every` seconds: SIGKILL of a worker, SIGSTOP of a worker for some
seconds, a flipped bit in the newest checkpoint followed by SIGKILL. Each run must end in the weights and
evaluations of a run that nothing disturbed. After each run, a line of OUT/soak.csv has the memory, the imported
modules, the open files and the threads of this process, the memory of its fork server, its child processes, and the
entries of /dev/shm and of TMPDIR. The table at the end has the slope of each. A method that runs first imports its
libraries, so the slope is that of the runs after each method ran once. It needs Linux.

`--show FILE` prints the table of a soak.csv, also while the soak runs.
"""

import argparse
import contextlib
import csv
import functools
import itertools
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cells import run_cell
from killed_runs import METHODS, curve_of, undisturbed, words_of

from istbench.base.processes import descendants
from istbench.base.threads import thread_beside

RESTARTS = 50
_STOPPED_S = (1.0, 8.0)
_LOG = re.compile(r"/logs/rank-([0-9]+)/")
_SERVER = "multiprocessing.forkserver"
_TRACKER = "multiprocessing.resource_tracker"
SAMPLES = ("memory_mb", "modules", "server_mb", "files", "threads", "children", "shm", "tmp")


class Faults:
    """Faults of the workers of this process, from a thread; `counts` has those since the last `run`."""

    def __init__(self, out: Path, every_s: float, seed: int) -> None:
        self._out, self._every_s, self._random = out, every_s, random.Random(seed)
        self._next = time.monotonic() + self._random.expovariate(1 / every_s)
        self.counts = Counter[str]()

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Inside, faults hit the run."""
        over = threading.Event()
        self.counts.clear()
        with thread_beside(functools.partial(self._disturb, over), over, "faults"):
            yield

    def _disturb(self, over: threading.Event) -> None:
        heard = 0
        while not over.wait(0.1):
            # Every fault waits for two evaluations after the last one, so that no three losses are at one step: a
            # run that is killed before it saves evaluates at the same step again.
            evaluations = sum(path.read_bytes().count(b'"evaluation"') for path in self._files("events.jsonl"))
            if time.monotonic() >= self._next and evaluations > heard and (living := workers()):
                with contextlib.suppress(ProcessLookupError):
                    self._hit(self._random.choice(living), over)
                    heard = evaluations + 2
                self._next = time.monotonic() + self._random.expovariate(1 / self._every_s)

    def _hit(self, victim: int, over: threading.Event) -> None:
        kind = self._random.choice(["kill", "kill", "stop", "damage"])
        if kind == "stop":
            os.kill(victim, signal.SIGSTOP)
            over.wait(self._random.uniform(*_STOPPED_S))
            os.kill(victim, signal.SIGCONT)
        else:
            if kind == "damage" and not self._damage():
                kind = "kill"
            os.kill(victim, signal.SIGKILL)
        self.counts[kind] += 1

    def _damage(self) -> bool:
        """Flip a byte of the newest checkpoint; False if there is none."""
        steps = [path.parent for path in self._files("checkpoint/*/manifest.json")]
        if not steps:
            return False
        newest = max(steps, key=lambda path: int(path.name))
        file = self._random.choice(sorted(newest.iterdir()))
        content = bytearray(file.read_bytes())
        content[self._random.randrange(len(content))] ^= 1
        file.write_bytes(content)
        return True

    def _files(self, pattern: str) -> list[Path]:
        return list(self._out.glob(f"runs/*/{pattern}"))


def workers() -> list[int]:
    """The process ids of the living workers of this process. The output of each goes to a log of its own."""
    found = []
    for process in descendants():
        with contextlib.suppress(OSError):
            if _LOG.search(str(Path(f"/proc/{process}/fd/1").readlink())):
                found.append(process)
    return found


def memory_mb(process: int) -> float:
    """The resident memory of `process` that belongs to no file.

    Pages of files count as private or shared by whether other processes read the same files.
    """
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    (anonymous,) = re.findall(r"^Anonymous: +([0-9]+) kB", text, re.MULTILINE)
    return int(anonymous) / 1024


def sample(tmp: Path) -> dict[str, float]:
    """The memory, the modules, the files, the threads and the children of this process, and shared entries."""
    commands = dict[int, bytes]()
    for process in descendants():
        with contextlib.suppress(OSError):
            commands[process] = Path(f"/proc/{process}/cmdline").read_bytes()
    server = next((process for process, command in commands.items() if _SERVER.encode() in command), None)
    helpers = [
        command for command in commands.values() if _SERVER.encode() in command or _TRACKER.encode() in command
    ]
    values = (
        memory_mb(os.getpid()),
        len(sys.modules),
        0.0 if server is None else memory_mb(server),
        len(list(Path("/proc/self/fd").iterdir())),
        len(list(Path("/proc/self/task").iterdir())),
        len(commands) - len(helpers),
        len(list(Path("/dev/shm").iterdir())),
        len(list(tmp.iterdir())),
    )
    return dict(zip(SAMPLES, values, strict=True))


def words(method: str, nodes: int, steps: int) -> list[str]:
    """The words after `istbench run` of a run of `method` on `nodes`."""
    listed = words_of(method, steps)
    listed[listed.index("--nodes") + 1] = str(nodes)
    return listed


def soak(asked: argparse.Namespace, out: Path, tmp: Path) -> list[dict[str, Any]]:
    """Run cells until the time or the number of runs is over; returns the lines of soak.csv."""
    began, faults, rows = time.monotonic(), Faults(out, asked.every, asked.seed), list[dict[str, Any]]()
    wanted = dict[tuple[str, int], tuple[str, list[tuple[int, float | None]]] | None]()
    cells = itertools.cycle(
        [(method, int(nodes)) for nodes in asked.nodes.split(",") for method in asked.methods.split(",")]
    )
    with (out / "soak.csv").open("w", newline="") as file:
        fields = ("at_s", "method", "nodes", "seconds", "kill", "stop", "damage", "restarts", "same", "wrong")
        table = csv.DictWriter(file, (*fields, *SAMPLES), restval=0)
        table.writeheader()
        for method, nodes in itertools.islice(cells, asked.runs):
            if time.monotonic() - began > asked.minutes * 60:
                break
            said = words(method, nodes, asked.steps)
            if (method, nodes) not in wanted:
                try:
                    row = undisturbed(said, 0.0)
                except SystemExit as refused:
                    print(f"{method} on {nodes} nodes: {refused}", flush=True)
                    wanted[method, nodes] = None
                else:
                    wanted[method, nodes] = row.digest, row.curve
            if (expected := wanted[method, nodes]) is None:
                continue
            started, wrong, restarts = time.monotonic(), "", 0
            shutil.rmtree(out / "runs", ignore_errors=True)
            try:
                with faults.during():
                    result = run_cell(*said, f"--restarts={RESTARTS}", out=out)
                (run,) = out.glob("runs/*")
                digest, curve = expected
                wrong = "" if result["weights_sha256"] == digest else "other weights"
                wrong = wrong or ("" if curve_of(run) == curve else "other evaluations")
                restarts = len(result["restarts"])
            except SystemExit as failed:
                wrong = str(failed).strip().splitlines()[-1]
            found = {"at_s": round(time.monotonic() - began), "method": method, "nodes": nodes, **faults.counts,
                     "seconds": round(time.monotonic() - started, 1), "restarts": restarts, "same": int(not wrong),
                     "wrong": wrong, **sample(tmp)}  # fmt: skip
            rows.append(found)
            table.writerow(found)
            file.flush()
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the runs and faults of `rows`, and the slopes of the samples."""
    counts = {kind: sum(row.get(kind, 0) for row in rows) for kind in ("kill", "stop", "damage", "restarts")}
    same = sum(row["same"] for row in rows)
    print(f"{same:g} of {len(rows)} runs ended in the undisturbed weights and evaluations; " + ", ".join(
        f"{count:g} {kind}" for kind, count in counts.items()))  # fmt: skip
    for row in rows:
        if row["wrong"]:
            print(f"{row['method']} on {row['nodes']:g} nodes at {row['at_s']:g} s: {row['wrong']}")
    once = len({row["method"] for row in rows})
    warm = rows[once - 1 :]
    hours = np.array([row["at_s"] / 3600 for row in warm])
    print(f"\n| sample | first run | run {once} | last run | most | slope an hour from run {once} on |")
    print("| :--- | ---: | ---: | ---: | ---: | ---: |")
    for name in SAMPLES:
        values = np.array([row[name] for row in warm], dtype=float)
        slope = f"{np.polyfit(hours, values, 1)[0]:+.2f}" if len(warm) > 2 else ""
        ends = f"{rows[0][name]:g} | {values[0]:g} | {values[-1]:g} | {max(row[name] for row in rows):g}"
        print(f"| {name} | {ends} | {slope} |")


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a soak.csv."""
    with path.open(newline="") as file:
        return [
            {name: text if name in ("method", "wrong") else float(text) for name, text in row.items()}
            for row in csv.DictReader(file)
        ]


def main() -> int:
    """Soak, print the table, and return 1 if a run ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), metavar="NAME,...")
    parser.add_argument("--nodes", default="2,3", metavar="N,...")
    parser.add_argument("--minutes", type=float, default=180.0)
    parser.add_argument("--runs", type=int, metavar="N", help="end after so many runs")
    parser.add_argument("--every", type=float, default=60.0, metavar="S", help="mean seconds between two faults")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--slow", type=float, default=0.1, metavar="S", help="seconds that every step waits")
    parser.add_argument("--seed", type=int, default=0, help="of moments, victims and kinds of faults")
    parser.add_argument("--out", type=Path, help="for soak.csv and the last run")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the table of a soak.csv, and run nothing")
    asked = parser.parse_args()
    if asked.show is not None:
        show(read(asked.show))
        return 0
    if asked.out is None:
        parser.error("name a folder with --out")
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ["SLOW_S"] = str(asked.slow)
    with tempfile.TemporaryDirectory() as tmp:
        os.environ["TMPDIR"] = tempfile.tempdir = tmp
        rows = soak(asked, out, Path(tmp))
    tempfile.tempdir = None
    show(rows)
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
