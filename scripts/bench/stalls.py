"""The stall table: train seconds of undisturbed and disturbed runs, and the recorded stalls.

Disturbed runs train by `ddp` on two nodes. `stopped`: a signal stops worker 1 for some seconds. `link down`: the
link of node 1 in a lab is down for some seconds. `slow link`: that link becomes slower, for the rest of the run.
Nothing disturbs the other runs, so they must have no stall. The script prints Markdown. The rows with a link need
Linux and root. Other work on the machine makes stalls of its own.

    python scripts/bench/stalls.py --hidden 16 --clips 12 --steps 40 --only ist    # to try it
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from istbench.base import activity
from istbench.fabric.recorder import Recorder
from istbench.launch.processes.failures import read_progress
from istbench.node.destinations import Destinations

_POLL_S = 0.02
_LAB = "istbench-lab-"
_METHODS: dict[str, tuple[str, ...]] = {
    "ddp": (),
    "ddp compress=powersgd": ("--set", "compress=powersgd", "--set", "start_compress=20"),
    "local_sgd": ("--set", "local_steps=10"),
    "local_sgd warmup": ("--set", "local_steps=10", "--set", "ddp_rounds=3"),
    "ist": ("--set", "local_steps=10"),
    "streaming_ist": ("--set", "local_steps=10"),
    "diloco": ("--set", "local_steps=10"),
    "streaming_diloco": ("--set", "local_steps=10"),
    "p3": (),
    "fsdp": (),
    "dslide": (),
}
"""Options of the undisturbed runs."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: the istbench arguments before `run`, those of the run, and its disturbance from step `begins` on."""

    name: str
    before: tuple[str, ...] = ()
    cell: tuple[str, ...]
    disturb: Callable[[Path], object] | None = None
    begins: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Train seconds, the events of stalls, and the lines of stderr on a late evaluation."""

    train_s: float
    stalls: list[dict[str, object]]
    late: list[str]

    @property
    def stalled_s(self) -> float:
        return sum(float(str(stall["seconds"])) for stall in self.stalls)


def worker(scratch: Path, rank: int) -> int:
    """The process of a worker, by the log in `scratch` that is its standard output."""
    for process in Path("/proc").iterdir():
        try:
            log = (process / "fd" / "1").readlink() if process.name.isdecimal() else Path()
        except OSError:
            continue
        if log.is_relative_to(scratch) and log.parts[-2:] == (f"rank-{rank}", "stdout.log"):
            return int(process.name)
    raise SystemExit(f"no process of rank {rank} writes to {scratch}")


def steps_done(scratch: Path) -> int:
    """The steps that the run with temporary files in `scratch` has done."""
    return max((read_progress(path).step for path in scratch.glob("istbench-*")), default=0)


def stopped(seconds: float) -> Callable[[Path], None]:
    """A signal stops worker 1 for `seconds`."""

    def disturb(scratch: Path) -> None:
        process = worker(scratch, 1)
        os.kill(process, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process, signal.SIGCONT)

    return disturb


def link_down(seconds: float) -> Callable[[Path], None]:
    """The link of node 1 is down for `seconds`."""

    def disturb(_scratch: Path) -> None:
        for state, after in (("down", seconds), ("up", 0.0)):
            _run_quietly("ip", "-n", f"{_LAB}hub", "link", "set", "port1", state)
            time.sleep(after)

    return disturb


def slow_link(rate: str) -> Callable[[Path], None]:
    """Both ends of the link of node 1 have `rate` from now on."""

    def disturb(_scratch: Path) -> None:
        for namespace, device in ((f"{_LAB}1", "eth0"), (f"{_LAB}hub", "port1")):
            shape = ("root", "handle", "1:") if device == "eth0" else ("root",)
            bucket = ("tbf", "rate", rate, "burst", "256000", "latency", "100ms")
            _run_quietly("tc", "-n", namespace, "qdisc", "change", "dev", device, *shape, *bucket)

    return disturb


def _run_quietly(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def rows(given: argparse.Namespace) -> Iterator[Row]:
    speech: tuple[str, ...] = ("--workload", "speech", "--workload-set", f"hidden={given.hidden}")
    speech += ("--workload-set", f"clips_per_word={given.clips}")
    wide: tuple[str, ...] = ("--workload", "amazon670k", "--workload-set", f"points={given.points}")
    wide += ("--workload-set", f"labels={given.points}", "--workload-set", "hidden=16")
    length: tuple[str, ...] = ("--nodes", "2", "--threads", "1", "--steps", str(given.steps))
    length += ("--eval-every", str(max(1, given.steps // 4)))
    for name, options in _METHODS.items():
        method = name.split()[0]
        yield Row(
            name=name, cell=("--method", method, *options, *(wide if method == "dslide" else speech), *length)
        )
    ddp = ("--method", "ddp", *speech, *length)
    begins = given.steps * 3 // 8  # within the second of four segments
    lab = ("lab", "--nodes", "2", "--bandwidth", given.bandwidth, "--")
    yield Row(name=f"stopped for {given.seconds:g} s", cell=ddp, disturb=stopped(given.seconds), begins=begins)
    yield Row(name="link, undisturbed", before=lab, cell=ddp)
    for name, disturb in (
        (f"link down for {given.down:g} s", link_down(given.down)),
        (f"slow link, {given.slow}", slow_link(given.slow)),
    ):
        yield Row(name=name, before=lab, cell=ddp, disturb=disturb, begins=begins)


def train(row: Row) -> Outcome:
    """Train the cell of `row`, with its disturbance."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "istbench", *row.before, "run", "--out", folder, *row.cell]
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": folder},
        )
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.extend(process.stderr or ()))
        reader.start()
        if row.disturb is not None:
            while process.poll() is None and steps_done(Path(folder)) < row.begins:
                time.sleep(_POLL_S)
            row.disturb(Path(folder))
        status = process.wait()
        reader.join()
        if status:
            raise SystemExit(f"{row.name}: status {status}: {''.join(said)}")
        events = _events(Path(folder))
    evaluations = [event for event in events if event["event"] == "evaluation"]
    return Outcome(
        train_s=float(str(evaluations[-1]["train_s"])),
        stalls=[event for event in events if event["event"] == "stall"],
        late=[line.strip() for line in said if line.startswith("slow:")],
    )


def _events(results: Path) -> list[dict[str, object]]:
    lines = [line for file in results.glob("runs/*/events.jsonl") for line in file.read_text().split("\n")[:-1]]
    return [json.loads(line) for line in lines]


def named(stalls: Sequence[dict[str, object]]) -> str:
    return "; ".join(
        f"step {stall['step']}, {'all ranks' if stall.get('rank') is None else 'rank ' + str(stall['rank'])}, "
        f"{stall.get('operation', 'several')}: {float(str(stall['seconds'])):.2f} s"
        for stall in stalls
    )


def print_cost(repeats: int, steps: int = 200_000) -> None:
    """Print the CPU time of the record of a step, and of a wait, which it times."""
    from istbench.node.stalls import Stalls
    from istbench.node.train_clock import TrainClock

    fabric: Any = SimpleNamespace(device=torch.device("cpu"), recorder=Recorder(torch.device("cpu")))
    stalls = Stalls(TrainClock(fabric), fabric, Destinations([]))

    def wait() -> None:
        with activity.current.waiting("an operation"):
            pass

    for _ in range(repeats):
        stalls.start()
        for name, act in (("step", stalls.step), ("wait", wait)):
            before = time.thread_time()
            for _ in range(steps):
                act()
            print(f"{name}: {(time.thread_time() - before) / steps * 1e9:.0f} ns")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--clips", type=int, default=100, help="clips of a word")
    parser.add_argument("--points", type=int, default=20000, help="points and labels of dslide's workload")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a stopped worker")
    parser.add_argument("--down", type=float, default=20.0, help="seconds of a link that is down")
    parser.add_argument("--bandwidth", default="1gbit", help="of the links in the lab")
    parser.add_argument("--slow", default="30mbit", help="bandwidth of the slow link")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--cost", action="store_true", help="only the CPU time that the record of a step takes")
    parser.add_argument("--only", default="", help="rows whose names begin with one of these, with commas")
    given = parser.parse_args()
    if given.cost:
        print_cost(given.repeats)
        return
    print("| run | train s | stalls | their s | without them | stalls by place | stderr |")
    print("| :--- | ---: | ---: | ---: | ---: | :--- | :--- |")
    for row in rows(given):
        if given.only and not row.name.startswith(tuple(given.only.split(","))):
            continue
        for _ in range(given.repeats):
            found = train(row)
            cells = (
                row.name, f"{found.train_s:.2f}", len(found.stalls), f"{found.stalled_s:.2f}",
                f"{found.train_s - found.stalled_s:.2f}", named(found.stalls) or "–", " ".join(found.late) or "–",
            )  # fmt: skip
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
