"""Test loss by second of four nodes that lose one and get it back: with `--elastic 2:4`, and waiting for the node.

python scripts/bench/elastic.py --methods ddp --ways elastic --steps 20 --slow 0.01 --lose 0 --back 1    # to try it

A step waits `--slow` seconds, so that all nodes are equally fast however few cores the machine has. Worker 3 is
killed `--lose` seconds after the first evaluation, and is back `--back` seconds later. An elastic run goes on with
three nodes meanwhile. A waiting run ends, and the same command starts all four once the node is back. Seconds are
those of a watch beside the runs, so noticing, starting, loading and work done again are in them. `--picture FILE`
draws the losses.
"""

import argparse
import bisect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from killed_runs import PLUGIN, SlowRun, has_evaluated
from kills import workers
from matplotlib.figure import Figure

from istbench.results.events import Evaluation
from istbench.results.run_parts import resizes
from istbench.results.store import RunDirectory

NODES, VICTIM = 4, 3
METHODS = {
    "ist": ("--set", "momentum=0.9", "--set", "local_steps=10", "--set", "lr=0.03"),
    "local_sgd": ("--set", "momentum=0.9", "--set", "local_steps=10"),
    "diloco": ("--set", "local_steps=10"),
    "ddp": ("--set", "momentum=0.9"),
}
WAYS = ("undisturbed", "elastic", "waiting")
COLOURS = {"undisturbed": "#999999", "elastic": "#0072B2", "waiting": "#D55E00"}
TOY = ("features=32", "classes=64", "samples=16384", "hidden=256")
_LEVEL = 1.2  # of the last loss of the first way
_MARKS = 6
# A worker of this machine is back after other seconds than by default.
_ISTBENCH = "import sys; from istbench.launch.cells import restarts; restarts.BACK_S = float(sys.argv.pop(1)); "
_ISTBENCH += "from istbench.cli import main; sys.exit(main())"


class NodeRun(SlowRun):
    """A run whose lost nodes are back after `back_s` seconds."""

    def __init__(self, words: list[str], out: Path, slow_s: float, back_s: float) -> None:
        self.out = out
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (lives as long as the run)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ISTBENCH, str(back_s), "run", "--json", *words, "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,
            env={**os.environ, "SLOW_S": str(slow_s)},
        )


@dataclass
class Watched:
    """One run beside a watch, which starts with its first evaluation.

    Attributes:
        points: seconds and test loss of each evaluation, as it came. samples, node_s: at the end.
        sizes: the changes of its nodes.
    """

    points: list[tuple[float, float]] = field(default_factory=list)
    samples: int = 0
    node_s: float = 0.0
    sizes: str = ""

    def loss_at(self, seconds: float) -> float | None:
        """The last loss before `seconds`."""
        place = bisect.bisect_right(self.points, (seconds, float("inf")))
        return self.points[place - 1][1] if place else None

    def reached(self, level: float) -> float | None:
        """The seconds until the loss was first at `level`."""
        return next((seconds for seconds, loss in self.points if loss <= level), None)


def watched(words: list[str], way: str, asked: argparse.Namespace) -> Watched:
    """Run `words` in that `way` to the end, with the loss of a node unless it is undisturbed."""
    with tempfile.TemporaryDirectory() as folder:
        more = ["--elastic", f"2:{NODES}", "--restarts", "9"] if way == "elastic" else []
        slow = NodeRun([*words, *more], Path(folder), asked.slow, asked.back)
        run = slow.wait_for(has_evaluated)
        found, began, killed, seen = Watched(), time.monotonic(), 0.0, 0
        while True:
            now = time.monotonic()
            ended = slow.process.poll()
            losses = [
                event.metrics["loss"] for event in RunDirectory(run).events() if isinstance(event, Evaluation)
            ]
            found.points += [(now - began, loss) for loss in losses[seen:] if loss is not None]
            seen = len(losses)
            if way != "undisturbed" and not killed and now - began >= asked.lose and VICTIM in workers(slow):
                os.kill(workers(slow)[VICTIM], signal.SIGKILL)
                killed = now
            if ended == 0:
                return _ended(found, run)
            if ended is not None:
                if way != "waiting" or not killed:
                    raise SystemExit(f"the {way} run of {' '.join(words)} ended with {ended}")
                time.sleep(max(0.0, killed + asked.back - time.monotonic()))
                slow, killed = NodeRun(words, Path(folder), asked.slow, asked.back), killed
                way = "undisturbed"
            time.sleep(0.05)


def _ended(found: Watched, run: Path) -> Watched:
    result = json.loads((run / "run.json").read_text())["result"]
    found.samples = result["samples"]
    found.node_s = sum(node["computing_s"] + node["waiting_s"] for node in result["node_seconds"])
    changes = resizes(RunDirectory(run).events())
    found.sizes = ", ".join(f"{one.before} to {one.after} in {one.seconds:.1f} s" for one in changes)
    return found


def words_of(method: str, steps: int) -> list[str]:
    """The words after `istbench run` of a run of `method`."""
    sizes = [f"--workload-set={size}" for size in TOY]
    return ["--method", method, "--workload", "slow", *sizes, *METHODS[method], "--plugin", str(PLUGIN),
            f"--nodes={NODES}", "--threads=1", f"--steps={steps}", "--eval-every=10",
            "--checkpoint-every=0"]  # fmt: skip


def shown(value: float | None, digits: int = 1) -> str:
    """`value`; a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def draw(rows: dict[str, dict[str, Watched]], path: Path) -> None:
    """The losses of each method over seconds."""
    figure = Figure(figsize=(3.4 * len(rows), 3.2), layout="constrained")
    panels = figure.subplots(1, len(rows), squeeze=False)[0]
    for panel, (method, ways) in zip(panels, rows.items(), strict=True):
        for way, one in ways.items():
            seconds, losses = zip(*one.points, strict=True)
            panel.plot(seconds, losses, color=COLOURS[way], label=way, drawstyle="steps-post")
        panel.set_title(method)
        panel.set_xlabel("seconds since the first evaluation")
        panel.grid(alpha=0.2)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test loss")
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> int:
    """Print the table, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), metavar="NAME,...")
    parser.add_argument("--ways", default=",".join(WAYS), metavar="NAME,...")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--slow", type=float, default=0.1, metavar="S", help="seconds that every step waits")
    parser.add_argument("--lose", type=float, default=10.0, metavar="S", help="seconds until the loss of a node")
    parser.add_argument("--back", type=float, default=20.0, metavar="S", help="seconds until it is back")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    asked = parser.parse_args()
    rows: dict[str, dict[str, Watched]] = {}
    for method in asked.methods.split(","):
        words = words_of(method, asked.steps)
        rows[method] = {way: watched(words, way, asked) for way in asked.ways.split(",")}
    end = max(one.points[-1][0] for ways in rows.values() for one in ways.values())
    marks = [end * mark / _MARKS for mark in range(1, _MARKS + 1)]
    print(f"| method | | {' | '.join(f'loss at {mark:.0f} s' for mark in marks)} | s to level | s in all | node-s "
          "| samples | changes |")  # fmt: skip
    print(f"| :--- | :--- | {'---: | ' * (_MARKS + 4)}:--- |")
    for method, ways in rows.items():
        first, *_ = ways.values()
        level = _LEVEL * first.points[-1][1]
        for way, one in ways.items():
            losses = " | ".join(shown(one.loss_at(mark), 3) for mark in marks)
            seconds = f"{shown(one.reached(level))} | {one.points[-1][0]:.1f} | {one.node_s:.0f} | {one.samples:,}"
            print(f"| {method} | {way} | {losses} | {seconds} | {one.sizes} |")
    print(f"\nlevel: {_LEVEL:g} times the last loss of the first way")
    if asked.picture is not None:
        draw(rows, asked.picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
