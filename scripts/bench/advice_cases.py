"""Advice of `istbench advise` on some cases, beside the truth: all its candidates, trained to the target in a lab.

A case is a task on a network. For each case the program runs `istbench advise`, and afterwards every candidate on
really shaped links (Linux, root). RUNS keeps all runs, a directory for each case. TARGET gets the table, README.md,
and the lines (advice, truth), advice.jsonl. The same command goes on after a kill: finished cases stay, and an
interrupted one resumes. --do advice and --do truth do one half only.

The recommended candidate runs by the very command of the advice. Any other one trains until it is slower than the
fastest one before it, so a miss means: not first.

    python scripts/bench/advice_cases.py RUNS TARGET --text input.txt
    python scripts/bench/advice_cases.py RUNS TARGET --text input.txt --cases speech-100mbit text-1gbit
    python scripts/bench/advice_cases.py RUNS TARGET --toy --minutes 0.5 --most 1    # to try it, as root
"""

import argparse
import math
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from istbench.advise.answer import Advice, Choice
from istbench.advise.measure import LOG
from istbench.advise.probe import NO_TIME
from istbench.advise.saved import load_advice
from istbench.advise.truth import Checked, calibration, regret
from istbench.door import decode_json
from istbench.files import writing_whole

ROOT = Path(__file__).parents[2]
TASKS = {
    "speech": "speech --workload-set hidden=512 --target 0.7",
    "text": "text --data TEXT --target 2.2",
    "task": f"{ROOT / 'configs' / 'tasks' / 'characters.py'} --target 2.3",
}
"""Words of `istbench advise` by task. TEXT is the file of --text, and data/input.txt of the task file."""
NETWORKS = {
    "100mbit": "--nodes 2 --bandwidth 100mbit",
    "1gbit": "--nodes 2 --bandwidth 1gbit",
    "3gbit-5ms": "--nodes 2 --bandwidth 3gbit --latency 5ms",
    "100mbit-4": "--nodes 4 --bandwidth 100mbit",
}
"""Words of `istbench advise` by network."""
TOY = {"toy": "toy --target 0.8 --methods local_sgd --seeds 1"}
_MISSED = 3  # the exit status of a run that missed its target
_PATIENCE = 1.05  # other candidates train for this many times the seconds of the fastest before
_MORE_STEPS = 4  # of another candidate, than its own command says


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A case in its case.json: wall seconds of `istbench advise`, whether it was resumed, and the truth so far.

    truth: train seconds to the target by label; None for a miss. complete: whether all candidates are in it.
    """

    wall_s: float
    resumed: bool = False
    truth: dict[str, float | None] = msgspec.field(default_factory=dict)
    complete: bool = False


@dataclass(frozen=True)
class Case:
    """A task on a network, and its directory."""

    name: str
    task: Sequence[str]
    network: Sequence[str]
    place: Path

    @property
    def record(self) -> Path:
        """The file of its `Done`."""
        return self.place / "case.json"

    def done(self) -> Done | None:
        """The finished parts; None without an advice."""
        if not self.record.exists():
            return None
        return decode_json(self.record.read_bytes(), Done, str(self.record), "delete it")

    def write(self, done: Done) -> None:
        """Keep the finished parts."""
        _write_whole(self.record, msgspec.json.encode(done))

    def advice(self) -> Advice:
        """Its advice."""
        advice = load_advice(self.place)
        if advice is None:
            raise SystemExit(f"{self.place} has no advice; delete {self.record}")
        return advice


def main() -> None:
    """Advise, measure, and write the table after each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--text", type=Path, metavar="FILE", help="a text for `text` and the task file")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each advice")
    parser.add_argument("--do", choices=("advice", "truth", "both"), default="both")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="such as speech-100mbit; default: all")
    parser.add_argument("--toy", action="store_true", help="one small case in place of the twelve")
    parser.add_argument(
        "--most", type=int, default=100, help="candidates to measure in a case, the likeliest first"
    )
    arguments = parser.parse_args()
    cases = _cases(arguments)
    chosen = [case for case in cases if not arguments.cases or case.name in arguments.cases]
    if unknown := set(arguments.cases or ()) - {case.name for case in cases}:
        raise SystemExit(
            f"unknown cases: {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in cases)}"
        )
    for case in chosen:
        if arguments.do != "truth" and case.done() is None:
            _advise(case, arguments.minutes)
            _write(cases, arguments)
        done = case.done()
        if arguments.do != "advice" and done is not None and not done.complete:
            _measure(case, done, arguments.most)
        _write(cases, arguments)
    print((arguments.target / "README.md").read_text())


def _cases(arguments: argparse.Namespace) -> list[Case]:
    tasks, networks = (TOY, {"1gbit": NETWORKS["1gbit"]}) if arguments.toy else (TASKS, NETWORKS)
    arguments.runs.mkdir(parents=True, exist_ok=True)
    text = arguments.text and arguments.text.resolve()
    if text is not None:
        link = arguments.runs / "data" / "input.txt"
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(text)
    elif not arguments.toy:
        raise SystemExit("give --text FILE, a text for `text` and the task file")
    return [
        Case(
            name=f"{task}-{network}",
            task=[str(text) if word == "TEXT" else word for word in shlex.split(words)],
            network=shlex.split(links),
            place=(arguments.runs / f"{task}-{network}").resolve(),
        )
        for task, words in tasks.items()
        for network, links in networks.items()
    ]


def _istbench(case: Case, *words: str) -> tuple[int, bytes]:
    """The exit status and the stdout of a command, in the directory that has data/input.txt."""
    print(f"{case.name}: istbench {shlex.join(words)}", file=sys.stderr, flush=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    ended = subprocess.run(
        [sys.executable, "-m", "istbench", *words], cwd=case.place.parent, stdout=subprocess.PIPE, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    return ended.returncode, ended.stdout


def _advise(case: Case, minutes: float) -> None:
    resumed, began = (case.place / "advise").exists(), time.monotonic()
    status, _ = _istbench(
        case, "advise", *case.task, *case.network, f"--minutes={minutes:g}", f"--out={case.place}", "--json"
    )
    if status not in (0, _MISSED):
        raise SystemExit(f"{case.name}: istbench advise ended with status {status}")
    case.write(Done(wall_s=time.monotonic() - began, resumed=resumed))


def to_measure(advice: Advice, most: int) -> list[Choice]:
    """The candidates whose truth counts, the recommended first: those with odds, and those that had no time."""
    return [one for one in advice.choices if not one.why_not or one.why_not == NO_TIME][:most]


def _measure(case: Case, done: Done, most: int) -> None:
    advice, truth = case.advice(), dict(done.truth)
    every = _option(advice.best, "--eval-every") if advice.best else ""
    for choice in to_measure(advice, most):
        if choice.label in truth:
            continue
        words = list(choice.command[2:])
        if choice is not advice.best:
            known = [seconds for seconds in truth.values() if seconds is not None]
            words += _longer(choice, every, min(known, default=math.inf))
        lab = ["lab", *case.network, "--", "run", *words, f"--out={case.place}", "--json"]
        status, printed = _istbench(case, *lab)
        if status not in (0, _MISSED):
            raise SystemExit(f"{case.name}: {choice.label} ended with status {status}")
        truth[choice.label] = _reached(printed, advice.target)
        case.write(msgspec.structs.replace(done, truth=truth))
    case.write(msgspec.structs.replace(done, truth=truth, complete=True))


def _longer(choice: Choice, every: str, fastest: float) -> list[str]:
    """Words that let a run end by its seconds, not by its steps."""
    steps, own = _option(choice, "--steps"), _option(choice, "--eval-every")
    words = [f"--steps={_MORE_STEPS * int(steps)}"] if steps else []
    words += [f"--eval-every={own or every}"] if own or every else []
    return [*words, *([f"--max-seconds={_PATIENCE * fastest:.4g}"] if math.isfinite(fastest) else [])]


def _option(choice: Choice, name: str) -> str:
    """The value of an option in the command of `choice`; empty if it has none."""
    words = list(choice.command)
    for place, word in enumerate(words):
        if word == name:
            return words[place + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""


class _Level(msgspec.Struct):
    level: float
    train_s: float | None


class _Ran(msgspec.Struct):
    targets: list[_Level]


def _reached(printed: bytes, target: float) -> float | None:
    ran = decode_json(printed, _Ran, "the JSON of istbench run", "run the program again")
    return next(one.train_s for one in ran.targets if one.level == target)


def _write(cases: Sequence[Case], arguments: argparse.Namespace) -> None:
    """Write the table, and the lines of advice and truth, of all cases so far."""
    found = [(case, done, case.advice()) for case in cases if (done := case.done()) is not None]
    checked = [Checked(advice=advice, truth=done.truth) for _, done, advice in found if done.complete]
    arguments.target.mkdir(parents=True, exist_ok=True)
    _write_whole(arguments.target / LOG, b"".join(msgspec.json.encode(one) + b"\n" for one in checked))
    lines = [
        "# Advice and truth",
        "",
        f"`scripts/bench/advice_cases.py`, {arguments.minutes:g} minutes for each advice.",
        "",
        "| case | advice | odds | minutes taken | expected seconds | measured seconds | fastest | its seconds | "
        "regret | measured |",
        "| :--- | :--- | ---: | ---: | ---: | ---: | :--- | ---: | ---: | ---: |",
        *(_row(*one) for one in found),
        "",
        *_summary(checked),
    ]
    _write_whole(arguments.target / "README.md", ("\n".join(lines) + "\n").encode())


def _write_whole(path: Path, content: bytes) -> None:
    with writing_whole(path) as file:
        file.write(content)


def _row(case: Case, done: Done, advice: Advice) -> str:
    best, truth = advice.best, done.truth
    fastest = min((label for label in truth if truth[label]), key=lambda label: truth[label] or 0.0, default="")
    minutes = f"{done.wall_s / 60:.1f}{' (resumed)' if done.resumed else ''}"
    cells = [
        case.name,
        best.label if best else "none",
        f"{advice.odds:.2f}" if best else "",
        minutes,
        f"{best.seconds:.3g} [{_seconds(best.low)}–{_seconds(best.high)}]" if best and best.seconds else "",
        _seconds(truth[best.label]) if best and best.label in truth else "",
        fastest,
        _seconds(truth[fastest]) if fastest else "",
        _regret(advice, done),
        f"{len(truth)}{'' if done.complete else ' so far'}",
    ]
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.3g}"


def _regret(advice: Advice, done: Done) -> str:
    found = regret(advice, done.truth) if done.complete else None
    return "" if found is None else "failed" if math.isinf(found) else f"{found:.1%}"


def _summary(checked: Sequence[Checked]) -> list[str]:
    regrets = [found for one in checked if (found := regret(one.advice, one.truth)) is not None]
    if not regrets:
        return []
    failed = sum(math.isinf(one) for one in regrets)
    lines = [
        f"Regret in time to target over {len(regrets)} cases: median {statistics.median(regrets):.1%}, worst "
        f"{max(regrets):.1%}. Recommendations that missed the target: {failed}.",
        "",
        "| odds of the first | advised | expected right | right |",
        "| :--- | ---: | ---: | ---: |",
    ]
    return lines + [
        f"| {one.low:g} to {one.high:g} | {one.advised} | {one.expected:.1f} | {one.right} |"
        for one in calibration(checked)
    ]


if __name__ == "__main__":
    main()
