"""Advice of `istbench advise` on some cases, beside the truth: all its candidates, trained to the target in a lab.

A case is a task on a network. For each case the program runs `istbench advise`, and afterwards every candidate on
really shaped links (Linux, root). RUNS keeps all runs, a directory for each case. TARGET gets the table, README.md,
the lines (advice, truth) of finished cases, advice.jsonl, and their names and wall seconds, cases.jsonl. The same
command goes on after a kill: finished cases stay, also without RUNS, and an interrupted one resumes. --do advice
and --do truth do one half only, --do table writes the table anew.

The recommended candidate runs by the very command of the advice. Any other one trains until it is slower than the
fastest one before it, so a miss means: not first. Until one has reached the target, each trains for at most four
times the expected seconds, and at least ten minutes. Candidates that step one left out train too, after the others.
Left out here are only those that cannot train there, do not fit, or failed in a probe.

A run that fails counts as a miss, and case.json names it. Without its label there, it runs again.

    python scripts/bench/advice_cases.py RUNS TARGET --text input.txt
    python scripts/bench/advice_cases.py RUNS TARGET --text input.txt --cases speech-100mbit text-1gbit
    python scripts/bench/advice_cases.py RUNS TARGET --cases others
    python scripts/bench/advice_cases.py RUNS TARGET --do table
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import msgspec

from istbench.base.decode import decode_json
from istbench.base.files import writing_whole
from istbench.base.machine import cores
from istbench.launch.lab.network import check
from istbench.studies.advise.advice_file import MeasuredAdvice, load_advice, regret, save_advice
from istbench.studies.advise.answer import Advice, RankedChoice
from istbench.studies.advise.candidate import NO_TIME, is_scheduled
from istbench.studies.advise.draws import RUN_SPREAD
from istbench.studies.advise.measure import LOG, read_checked
from istbench.studies.advise.steps_to_target import TOO_FEW

ROOT = Path(__file__).parents[2]
BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Edges of the bins of odds. The last one includes odds of 1."""
TASKS = {
    "speech": "speech --workload-set hidden=512 --target 0.77",
    "text": "text --data data/input.txt --target 2.1",
    "task": "characters.py --target 2.3",
}
"""Words of `istbench advise` by task. Paths are relative to RUNS: advice.jsonl names none of the machine."""
NETWORKS = {
    "100mbit": "--nodes 2 --bandwidth 100mbit",
    "1gbit": "--nodes 2 --bandwidth 1gbit",
    "3gbit-5ms": "--nodes 2 --bandwidth 3gbit --latency 5ms",
    "100mbit-4": "--nodes 4 --bandwidth 100mbit",
}
"""Words of `istbench advise` by network."""
OTHER_NETWORKS = {**NETWORKS, "1gbit-4": "--nodes 4 --bandwidth 1gbit"}
OTHERS = (
    "beats-1gbit-4", "beats-100mbit", "regression-1gbit", "regression-100mbit-4", "pictures-1gbit", "sums-1gbit-4",
)  # fmt: skip
"""Six further cases, by which no constant was chosen."""
ADAM = "--set optimizer=adam --set lr=0.001"
OTHER_TASKS = {name: f"{name}.py {ADAM}" for name in ("beats", "regression", "pictures", "sums")}
"""Words of `istbench advise` by task of `advice_tasks`, without data and without a target."""
TOY = {"toy": "toy --target 0.8 --methods local_sgd --seeds 1"}
_CASES = "cases.jsonl"
_FAILED = (1, 2)  # exit statuses of a run that failed, or that istbench refused
_MISSED, _INTERRUPTED = 3, 130
_PATIENCE = 1.05  # other candidates train for this many times the seconds of the fastest before
_MORE = 4  # times the steps of its own command, and the expected seconds if no candidate has reached the target
_SHORTEST_S = 0.1  # that istbench limits a run to
_LEAST_S = 600.0  # of a candidate if none has reached the target
_HELD = 0.8  # of the draws that are in a range
_END = NormalDist().inv_cdf((1 + _HELD) / 2)
_EVALUATIONS = 12  # in the seconds of a candidate, and in four times those that it should take


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A case in its case.json: wall seconds of `istbench advise`, whether it was resumed, and the truth so far.

    truth: train seconds to the target by label; None for a miss. failed: labels of misses whose runs failed.
    complete: whether all candidates are in it.
    """

    wall_s: float
    resumed: bool = False
    truth: dict[str, float | None] = msgspec.field(default_factory=dict)
    failed: list[str] = msgspec.field(default_factory=list)
    complete: bool = False


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A complete case in TARGET's cases.jsonl. The line of advice.jsonl with the same number has its advice."""

    case: str
    done: Done


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
        advice = load_advice(self.place)
        if advice is None:
            raise SystemExit(f"{self.place} has no advice; delete {self.record}")
        return advice


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--text", type=Path, metavar="FILE", help="a text for `text` and the task file")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each advice")
    parser.add_argument("--do", choices=("advice", "truth", "both", "table"), default="both")
    parser.add_argument(
        "--cases",
        nargs="+",
        metavar="CASE",
        help="such as speech-100mbit, or `others`, the six further ones; default: all",
    )
    parser.add_argument("--toy", action="store_true", help="one small case in place of all")
    parser.add_argument(
        "--most", type=int, default=100, help="candidates to measure in a case, the likeliest first"
    )
    arguments = parser.parse_args()
    if arguments.cases == ["others"]:
        arguments.cases = [*OTHERS]
    cases = all_cases(arguments)
    restore(cases, arguments.target)
    chosen = [case for case in cases if not arguments.cases or case.name in arguments.cases]
    if unknown := set(arguments.cases or ()) - {case.name for case in cases}:
        raise SystemExit(
            f"unknown cases: {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in cases)}"
        )
    if arguments.do in ("truth", "both"):
        check()  # else every run fails
    for case in chosen:
        if arguments.do in ("advice", "both") and case.done() is None:
            advise(case, arguments.minutes)
            write_table(cases, arguments)
        done = case.done()
        if arguments.do in ("truth", "both") and done is not None:
            measure(case, done, arguments.most)
        write_table(cases, arguments)
    print((arguments.target / "README.md").read_text())


def all_cases(arguments: argparse.Namespace) -> list[Case]:
    """The cases that `arguments` choose from. Links the files of their tasks in RUNS."""
    tasks, networks, names = {**TASKS, **OTHER_TASKS}, OTHER_NETWORKS, [*_product(TASKS, NETWORKS), *OTHERS]
    if arguments.toy:
        tasks, networks, names = TOY, NETWORKS, ["toy-1gbit"]
    arguments.runs.mkdir(parents=True, exist_ok=True)
    if arguments.text is not None:
        _link(arguments.runs / "data" / "input.txt", arguments.text)
        _link(arguments.runs / "characters.py", ROOT / "configs" / "tasks" / "characters.py")
    elif not arguments.toy and arguments.do != "table" and not {*(arguments.cases or names)} <= {*OTHERS}:
        raise SystemExit("give --text FILE, a text for `text` and the task file")
    for task in OTHER_TASKS:
        _link(arguments.runs / f"{task}.py", ROOT / "scripts" / "bench" / "advice_tasks" / f"{task}.py")
    return [
        Case(
            name=name,
            task=shlex.split(tasks[task]),
            network=shlex.split(networks[network]),
            place=(arguments.runs / name).resolve(),
        )
        for name in names
        for task, _, network in [name.partition("-")]
    ]


def _product(tasks: Iterable[str], networks: Iterable[str]) -> list[str]:
    return [f"{task}-{network}" for task in tasks for network in networks]


def _link(place: Path, file: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(file.resolve())


def restore(cases: Sequence[Case], target: Path) -> None:
    """Write the complete cases in `target` into the directories of those of `cases` that have no advice."""
    names = target / _CASES
    if not names.exists():
        return
    finished = [
        decode_json(line, Finished, f"{names}, line {number}", f"delete {target}")
        for number, line in enumerate(names.read_bytes().splitlines(), start=1)
    ]
    checked = read_checked(target / LOG)
    if len(finished) != len(checked):
        raise SystemExit(f"{names} has {len(finished)} lines and {LOG} beside it {len(checked)}; delete both")
    by_name = {case.name: case for case in cases if case.done() is None}
    for one, line in zip(finished, checked, strict=True):
        if one.case in by_name:
            case = by_name[one.case]
            case.place.mkdir(parents=True, exist_ok=True)
            save_advice(line.advice, case.place)
            case.write(one.done)


def _istbench(case: Case, *words: str) -> tuple[int, bytes]:
    """The exit status and the stdout of a command, in the directory that has data/input.txt."""
    print(f"{case.name}: istbench {shlex.join(words)}", file=sys.stderr, flush=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    ended = subprocess.run(
        [sys.executable, "-m", "istbench", *words], cwd=case.place.parent, stdout=subprocess.PIPE, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    if ended.returncode == _INTERRUPTED:
        raise SystemExit(f"{case.name}: interrupted; run the program again")
    if ended.returncode not in (0, _MISSED):
        print(f"{case.name}: istbench ended with status {ended.returncode}", file=sys.stderr, flush=True)
    return ended.returncode, ended.stdout


def advise(case: Case, minutes: float) -> None:
    """Run `istbench advise` on `case`. A failed one leaves nothing, so the next command runs it again."""
    resumed, began = (case.place / "advise").exists(), time.monotonic()
    status, _ = _istbench(
        case, "advise", *case.task, *case.network, f"--minutes={minutes:g}", f"--out={case.place}", "--json"
    )
    if status in (0, _MISSED):
        case.write(Done(wall_s=time.monotonic() - began, resumed=resumed))


def to_measure(advice: Advice, most: int) -> list[RankedChoice]:
    """The candidates whose truth counts, the recommended first: all that can train there and did not fail.

    Those with odds come first, then those without time or enough evaluations, then those that step one left out.
    One node alone counts in any case. It comes early: its seconds end the runs of slower candidates.
    """
    able = [one for one in advice.choices if one.why_not in ("", TOO_FEW, one.stopped)]
    kept = sorted(able, key=lambda one: (bool(one.why_not), one.why_not not in (NO_TIME, TOO_FEW)))[:most]
    alone = [one for one in able if one.nodes == 1 and one not in kept[:1]]
    return [*kept[:1], *alone, *(one for one in kept[1:] if one not in alone)]


def measure(case: Case, done: Done, most: int) -> None:
    """Train at most `most` candidates of `case` that have no truth yet, and keep each result at once."""
    advice = case.advice()
    truth, failed, unknown = dict(done.truth), list(done.failed), False
    for choice in to_measure(advice, most):
        if choice.label in truth:
            continue
        words = list(choice.command[2:])
        if choice is not advice.best:
            words += longer(choice, advice, truth)
        # One node needs no network, and a lab would train it on all of its nodes. It has the cores of one of them.
        alone = [f"--nodes={choice.nodes}", f"--threads={max(1, cores() // advice.nodes)}"]
        where = ["run", *alone] if choice.nodes == 1 else ["lab", *case.network, "--", "run"]
        status, printed = _istbench(case, *where, *words, f"--out={case.place}", "--json")
        if status in _FAILED:
            failed.append(choice.label)
        elif status not in (0, _MISSED):  # a signal ended it: the next command runs it again
            unknown = True
            continue
        truth[choice.label] = None if status in _FAILED else reached(printed, advice.target)
        case.write(msgspec.structs.replace(done, truth=truth, failed=failed))
    case.write(msgspec.structs.replace(done, truth=truth, failed=failed, complete=not unknown))


def longer(choice: RankedChoice, advice: Advice, truth: Mapping[str, float | None]) -> list[str]:
    """Words that let a run end by its seconds, not by its steps, and that evaluate often.

    A run stops where it evaluates, and reaches a target there. Steps between evaluations that follow from a wrong
    expectation would hide what the truth is to tell.
    """
    most_s = _most_seconds(advice, truth)
    steps = _option(choice, "--steps") or (_option(advice.best, "--steps") if advice.best else "")
    more = 1 if is_scheduled(choice.options) else _MORE  # a schedule spreads over all steps
    words = [f"--steps={more * int(steps)}"] if steps else []
    every_s = min(most_s, _MORE * choice.seconds if choice.seconds else math.inf) / _EVALUATIONS
    return [*words, f"--eval-every={every_s:.4g}s", f"--max-seconds={most_s:.4g}"]


def _most_seconds(advice: Advice, truth: Mapping[str, float | None]) -> float:
    known = [seconds for seconds in truth.values() if seconds is not None]
    if known:
        return max(_SHORTEST_S, _PATIENCE * min(known))
    expected = advice.best.seconds if advice.best else None
    return max(_LEAST_S, _MORE * (expected or 0.0))


def _option(choice: RankedChoice, name: str) -> str:
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


def reached(printed: bytes, target: float) -> float | None:
    """Train seconds to `target` in the output of `istbench run --json`; None for a miss."""
    ran = decode_json(printed, _Ran, "the JSON of istbench run", "run the program again")
    return next(one.train_s for one in ran.targets if one.level == target)


def write_table(cases: Sequence[Case], arguments: argparse.Namespace) -> None:
    """Write the table, and the lines of advice and truth, of all cases so far."""
    found = [(case, done, case.advice()) for case in cases if (done := case.done()) is not None]
    complete = [one for one in found if one[1].complete]
    arguments.target.mkdir(parents=True, exist_ok=True)
    log = arguments.target / LOG
    _write_lines(log, [MeasuredAdvice(advice=advice, truth=done.truth) for _, done, advice in complete])
    _write_lines(arguments.target / _CASES, [Finished(case=case.name, done=done) for case, done, _ in complete])
    lines = [
        "# Advice and truth",
        "",
        f"Each row is a case: `istbench advise` for at most {arguments.minutes:g} minutes, and then the truth. "
        f"{len(found)} of {len(cases)} cases are here. `scripts/bench/advice_cases.py` writes this page.",
        "",
        *_questions(cases),
        "",
        "| case | advice | odds | minutes taken | expected seconds | measured seconds | fastest | its seconds | "
        "regret | measured |",
        "| :--- | :--- | ---: | ---: | ---: | ---: | :--- | ---: | ---: | ---: |",
        *(row(*one) for one in found),
        "",
        "- Expected seconds: to the target, with a range that holds 8 of 10 draws.",
        "- Measured seconds: train seconds to the target in a lab with really shaped links, one seed. Candidates "
        f"other than the advice train until they are {_PATIENCE - 1:.0%} slower than the fastest one before them.",
        f"- Regret: measured seconds over those of the fastest candidate, less one: {_among(complete)}.",
        "- Measured: the number of candidates. It has those that step one left out for their speed.",
        "",
        *summary(read_checked(log)),
    ]
    _write_whole(arguments.target / "README.md", ("\n".join(lines) + "\n").encode())


def _among(complete: Sequence[tuple[Case, Done, Advice]]) -> str:
    """The candidates that regret compares."""
    labels = {label for _, done, _ in complete for label in done.truth}
    among = sum("schedule=" in label for label in labels)
    return "all at a constant learning rate" if not among else f"{among} with the schedule of their workload"


def _questions(cases: Sequence[Case]) -> list[str]:
    """A line for each task and for each network, as words of `istbench advise`."""
    tasks = dict.fromkeys((case.name.partition("-")[0], shlex.join(case.task)) for case in cases)
    networks = dict.fromkeys((case.name.partition("-")[2], shlex.join(case.network)) for case in cases)
    return [f"- {name}: `{words}`" for name, words in (*tasks, *networks)]


def _write_lines(path: Path, lines: Sequence[msgspec.Struct]) -> None:
    _write_whole(path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _write_whole(path: Path, content: bytes) -> None:
    with writing_whole(path) as file:
        file.write(content)


def row(case: Case, done: Done, advice: Advice) -> str:
    """The line of `case` in the table."""
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
        regret_text(advice, done),
        f"{len(truth)}{'' if done.complete else ' so far'}{_failures(done)}",
    ]
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.3g}"


def _failures(done: Done) -> str:
    return f", failed: {', '.join(done.failed)}" if done.failed else ""


def regret_text(advice: Advice, done: Done) -> str:
    """The regret of the advice as a cell of the table; empty until the case is complete."""
    if advice.best is not None and advice.best.label in done.failed:
        return "failed"
    found = regret(advice, done.truth) if done.complete else None
    return "" if found is None else "missed" if math.isinf(found) else f"{found:.1%}"


def needed_spread(one: MeasuredAdvice) -> float | None:
    """The spread of a later run with which the range of the recommended method holds its truth; None without one.

    Logs of the seconds are normal on either side of the expected ones. The spread of later runs that is in the
    range already does not count.
    """
    best = one.advice.best
    if best is None or best.seconds is None or best.low is None or best.label not in one.truth:
        return None
    found = one.truth[best.label]
    end = best.low if found is not None and found < best.seconds else best.high
    if found is None or end is None:
        return math.inf if end is not None else 0.0
    own = max(0.0, math.log(end / best.seconds) ** 2 - (_END * one.advice.run_spread) ** 2)
    return math.sqrt(max(0.0, math.log(found / best.seconds) ** 2 - own)) / _END


def held_by(needed: Sequence[float]) -> float:
    """The spread that holds 8 of 10 further cases: so many of these, and of the further one."""
    return sorted([*needed, math.inf])[math.ceil(_HELD * (len(needed) + 1)) - 1]


def ranges(checked: Sequence[MeasuredAdvice]) -> str:
    """Whether ranges of expected seconds hold the measured ones, and the spread that they would need."""
    needed = [(one.advice.run_spread, own) for one in checked if (own := needed_spread(one)) is not None]
    found = [own for _, own in needed]
    inside = sum(own <= had for had, own in needed)
    held = f"The range holds the measured seconds of {inside} of {len(found)} recommendations."
    others = [held_by([*found[:place], *found[place + 1 :]]) for place in range(len(found))]
    if not others or math.inf in others:
        return held
    kept = sum(own <= spread for own, spread in zip(found, others, strict=True))
    return (
        f"{held} With the spread of a later run that the other cases need, it holds {kept} of {len(found)}; all "
        f"together need one of {held_by(found):.3f}. Today's is {RUN_SPREAD} (`RUN_SPREAD` in "
        "`studies/advise/draws.py`)."
    )


def summary(checked: Sequence[MeasuredAdvice]) -> list[str]:
    """Lines below the table: regret, ranges, and odds by bin."""
    regrets = [found for one in checked if (found := regret(one.advice, one.truth)) is not None]
    missed = sum(one.truth.get(one.advice.best.label, 0.0) is None for one in checked if one.advice.best)
    if not regrets:
        return [f"Recommendations that missed the target, or failed: {missed}."] if missed else []
    lines = [
        f"Regret in time to target over {len(regrets)} cases: median {statistics.median(regrets):.1%}, worst "
        f"{max(regrets):.1%}. Recommendations that missed the target, or failed: {missed}.",
        "",
        ranges(checked),
        "",
        "| odds of the first | advised | expected right | right |",
        "| :--- | ---: | ---: | ---: |",
    ]
    return lines + [
        f"| {one.low:g} to {one.high:g} | {one.advised} | {one.expected:.1f} | {one.right} |"
        for one in calibration(checked)
    ]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Advice whose odds lie from `low` to below `high`.

    Attributes:
        advised, right: how many, and how many of them were first in truth.
        expected: how many would be, by the mean of their odds.
    """

    low: float
    high: float
    advised: int
    right: int
    expected: float


def calibration(checked: Iterable[MeasuredAdvice], edges: Sequence[float] = BINS) -> tuple[Calibration, ...]:
    """The share of advice whose candidate was really first, by bins of its odds, without empty bins.

    Advice counts if at least one other candidate was measured too.
    """
    pairs = [
        (one.advice.odds, found == 0.0)
        for one in checked
        if len(one.truth) > 1 and (found := regret(one.advice, one.truth)) is not None
    ]
    bins = []
    for low, high in pairwise(edges):
        inside = [(odds, right) for odds, right in pairs if low <= odds < high or odds == high == edges[-1]]
        if inside:
            bins.append(
                Calibration(
                    low=low,
                    high=high,
                    advised=len(inside),
                    right=sum(right for _, right in inside),
                    expected=math.fsum(odds for odds, _ in inside),
                )
            )
    return tuple(bins)


if __name__ == "__main__":
    main()
