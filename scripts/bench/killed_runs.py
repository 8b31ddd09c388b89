"""Runs of every method, killed by SIGKILL at random moments, against runs that nothing disturbed.

python scripts/bench/killed_runs.py --methods ddp --kills 1 --steps 20    # to try it

For each method, one run goes undisturbed. Then a kill hits the launcher or another process of the run, at a moment
between the first evaluation and the end. One further command must end in the weights and evaluations of the first
run.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cells import run_cell
from spread import spread

from istbench.results.events import Resume
from istbench.results.load import load_run
from istbench.results.run_parts import Restart
from istbench.results.store import RunDirectory

PLUGIN = Path(__file__).parent / "slow_workloads.py"
WIDE = ("--workload", "slow_wide", *(f"--workload-set={size}" for size in (
    "hidden=8", "features=40", "labels=60", "points=4096")))  # fmt: skip
METHODS = {
    "ddp": ("--set", "momentum=0.9"),
    "zero": ("--set", "momentum=0.9"),
    "fsdp": ("--set", "optimizer=adam"),
    "local_sgd": ("--set", "momentum=0.9"),
    "diloco": (),
    "streaming_diloco": (),
    "sparseloco": ("--set", "chunk=9", "--set", "top=2"),
    "noloco": (),
    "ist": ("--set", "momentum=0.9"),
    "streaming_ist": ("--set", "momentum=0.9"),
    "p3": ("--set", "optimizer=adam", "--set", "slice_params=30"),
    "parameter_server": (),
    "model_parallel": (*WIDE, "--set", "momentum=0.9", "--set", "optimizer=sgd"),
    "dslide": (*WIDE, "--set", "target_active=6"),
    "sampled_softmax": (*WIDE, "--set", "target_active=6"),
}
_STARTS_S, _ENDS_S = 300.0, 120.0


def words_of(method: str, steps: int) -> list[str]:
    """The words after `istbench run` of a run of `method`, which evaluates and saves ten times."""
    sizes = ("--workload", "slow") if WIDE[0] not in METHODS[method] else ()
    every = max(1, steps // 10)
    return ["--method", method, "--nodes", "2", "--threads", "1", *sizes, *METHODS[method], "--plugin", str(PLUGIN),
            f"--steps={steps}", f"--eval-every={every}", "--checkpoint-every=0"]  # fmt: skip


class SlowRun:
    """A run in a process of its own, in a session of its own, `slow_s` seconds a step."""

    def __init__(
        self, words: list[str], out: Path, slow_s: float, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.out = out
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (lives as long as the run)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "istbench", "run", "--json", *words, "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,
            env={**environment, "SLOW_S": str(slow_s)},
        )

    def wait_for(self, ready: Callable[[Path], bool], seen: Path | None = None) -> Path:
        """The run directory, once it is `ready`. seen: where another host sees `out`."""
        until = time.monotonic() + _STARTS_S
        while time.monotonic() < until:
            for run in (seen or self.out).glob("runs/*"):
                if ready(run):
                    return run
            if self.process.poll() is not None:
                raise SystemExit(self.said())
            time.sleep(0.01)
        raise SystemExit("the run did not start")

    def said(self) -> str:
        """What the run has written to standard error."""
        self._said.seek(0)
        return self._said.read()

    def kill(self, victim: int) -> None:
        """Kill process `victim`, and wait until nothing of the run is left."""
        os.kill(victim, signal.SIGKILL)
        self.process.wait(_ENDS_S)
        until = time.monotonic() + _ENDS_S
        while self.members():
            if time.monotonic() > until:
                raise SystemExit(f"processes of the run are left {_ENDS_S:g} s after the kill")
            time.sleep(0.05)

    def members(self) -> list[int]:
        """Living processes of the run, the launcher first."""
        alive = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                state, _, group, *_ = (path / "stat").read_text().rsplit(")", 1)[1].split()  # see proc(5)
            except OSError:
                continue
            if int(group) == self.process.pid and state != "Z":
                alive.append(int(path.name))
        return sorted(alive, key=lambda number: (number != self.process.pid, number))


def curve_of(run: Path) -> list[tuple[int, float | None]]:
    """Steps and values of the evaluations of a run."""
    curve = load_run(RunDirectory(run)).curve
    return [(at.step, value) for at, value in zip(curve.evaluations, curve.values, strict=True)]


def has_evaluated(run: Path) -> bool:
    """Whether the run trains: its start takes longer than a short training."""
    events = run / "events.jsonl"
    return events.exists() and b'"evaluation"' in events.read_bytes()


@dataclass
class Row:
    """The kills of one method. resumed: the steps that it resumed from; 0 is a new start."""

    digest: str
    curve: list[tuple[int, float | None]]
    seconds: float
    kills: Counter[str] = field(default_factory=Counter)
    resumed: list[int] = field(default_factory=list)
    same: int = 0
    wrong: list[str] = field(default_factory=list)

    def compare(self, digest: str, run: Path) -> None:
        """Note whether a run that ended with the weights of `digest` is the undisturbed one."""
        if digest != self.digest:
            self.wrong.append("other weights")
        elif curve_of(run) != self.curve:
            self.wrong.append("other evaluations")
        else:
            self.same += 1


def print_seconds(lost: Sequence[Restart]) -> None:
    """Print what the losses cost, if there are any."""
    parts = ("seconds", "noticing_s", "starting_s", "loading_s", "redone_s") if lost else ()
    said = [f"{part} {spread([float(getattr(one, part)) for one in lost], 2)}" for part in parts]
    if said:
        print(f"median [range] of a loss: {', '.join(said)}")


def undisturbed(words: list[str], slow_s: float) -> Row:
    """The run of `words` to its end, and its seconds from the first evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        slow = SlowRun(words, Path(folder), slow_s)
        run = slow.wait_for(has_evaluated)
        began = time.monotonic()
        slow.process.wait()
        seconds = time.monotonic() - began
        header = json.loads((run / "run.json").read_text())
        return Row(header["result"]["weights_sha256"], curve_of(run), seconds)


def kill_once(row: Row, words: list[str], slow_s: float, chance: random.Random) -> None:
    """Kill a run at a random moment, run the command again, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        slow = SlowRun(words, Path(folder), slow_s)
        run = slow.wait_for(has_evaluated)
        time.sleep(chance.uniform(0, row.seconds))
        members = slow.members()
        if not members:
            row.kills["after the end"] += 1
            return
        launcher = len(members) == 1 or chance.random() < 0.5
        slow.kill(members[0] if launcher else chance.choice(members[1:]))
        row.kills["launcher" if launcher else "other"] += 1
        try:
            digest = run_cell(*words, out=Path(folder))["weights_sha256"]
        except SystemExit as refused:
            row.wrong.append(str(refused).strip().splitlines()[-1])
            return
        events = RunDirectory(run).events()
        row.resumed.append(max([0, *(event.step for event in events if isinstance(event, Resume))]))
        row.compare(digest, run)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), metavar="NAME,...")
    parser.add_argument("--kills", type=int, default=4, metavar="N", help="kills of each method, at most")
    parser.add_argument("--seconds", type=float, default=600.0, metavar="S", help="no further kill after this long")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--slow", type=float, default=0.03, metavar="S", help="seconds that every step waits")
    parser.add_argument("--seed", type=int, default=0, help="of moments and victims")
    asked = parser.parse_args()
    chance, until = random.Random(asked.seed), time.monotonic() + asked.seconds
    rows: dict[str, Row] = {}
    for _ in range(asked.kills):
        for method in asked.methods.split(","):
            if time.monotonic() < until:
                words = words_of(method, asked.steps)
                row = rows.get(method) or rows.setdefault(method, undisturbed(words, asked.slow))
                kill_once(row, words, asked.slow, chance)
    print(
        "| method | kills of the launcher | of another process | resumed from steps | undisturbed result | else |"
    )
    print("| :--- | ---: | ---: | :--- | ---: | :--- |")
    for method, row in rows.items():
        resumed = ", ".join(map(str, row.resumed))
        wrong = "; ".join(row.wrong)
        print(f"| {method} | {row.kills['launcher']} | {row.kills['other']} | {resumed} | {row.same} | {wrong} |")
    made = sum(row.kills["launcher"] + row.kills["other"] for row in rows.values())
    same = sum(row.same for row in rows.values())
    late = sum(row.kills["after the end"] for row in rows.values())
    print(f"\n{same} of {made} kills ended in the undisturbed weights and evaluations; {late} came after the end")
    return int(same != made)


if __name__ == "__main__":
    raise SystemExit(main())
