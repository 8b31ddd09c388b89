"""How well `istbench advise` extrapolates curves, and how often its odds are right, on recorded curves cut short.

    python scripts/bench/extrapolated_steps.py
    python scripts/bench/extrapolated_steps.py --studies extreme --cut .45 --short .2 --draws 20    # to try it

Each finished curve of the studies in results/ ends early, after each share `--cut` of its evaluations. Every later
value that is better than all before the cut is a target. Printed: how often the true step lies below the 10 %
quantile of the draws, between both and above the 90 % one, the median of estimated over true steps, and the spread
of the log of steps to a target between seeds and between rows. Curves with a schedule of the learning rate are left
out, because their ends differ with the budget.

The second table has short probes: each curve ends after each share `--short` of its steps, beside the whole curves
of all other rows on equal nodes. Its true step is compared with the draws along these, and with those of its own
law.

The last tables ask questions: one seed of each row is the truth, the others are probes that end at the cut, and
each row has random seconds a step (`--questions` clusters for each target). Then the errors of replays and the
bandwidth are drawn as the odds assume them; the curves are real. In the very last table, all rows but two end at a
short cut.
"""

import argparse
import csv
import itertools
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from istbench.cluster.trace import Floats
from istbench.results.curves import Curve, time_to_target
from istbench.results.events import Evaluation
from istbench.results.metrics import Metric, metric_named
from istbench.studies.advise.candidate import Candidate
from istbench.studies.advise.draws import Drawn, replay_error, seed_spread
from istbench.studies.advise.odds import first
from istbench.studies.advise.seconds import BANDWIDTHS, CandidateClock
from istbench.studies.advise.steps_to_target import StepsToTarget, steps_to_target

RESULTS = Path(__file__).parents[2] / "results"
METRICS = {"extreme": ["precision@1"]}
FEWEST = 4  # evaluations of a probe, with that of step 0
LEVELS = [0.05 * step for step in range(4, 20)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    studies = ["speech-synthetic", "speech-recorded", "streaming-speech", "extreme"]
    parser.add_argument("--studies", nargs="+", default=studies)
    parser.add_argument("--cut", nargs="+", type=float, default=[0.3, 0.45, 0.6])
    parser.add_argument("--short", nargs="+", type=float, default=[0.05, 0.1, 0.2])
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--questions", type=int, default=4)
    arguments = parser.parse_args()
    print("| study | metric | targets | below 10 % | between | above 90 % | estimated over true |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    spreads, paces = list[float](), list[float]()
    for study in arguments.studies:
        for name in METRICS.get(study, ["accuracy", "loss"]):
            rows = curves_of(RESULTS / study / "evaluations.csv", metric_named(name))
            told = extrapolated([curve for _, curve in rows], arguments.cut, arguments.draws)
            ratio = median(one.ratio for one in told)
            print(f"| {study} | {name} | {len(told)} | {shares_of(told)} | {ratio:.2f} |")
            if name != "loss":
                spreads += between_seeds(rows)
                paces += between_rows(rows)
    pooled = math.sqrt(fmean(spread**2 for spread in spreads))
    print(f"\nBetween seeds: median {median(spreads):.3f}, root of the mean square {pooled:.3f}.")
    pooled = math.sqrt(fmean(pace**2 for pace in paces)) if paces else math.nan
    print(f"Between two rows on equal nodes: root of the mean square {pooled:.3f}.\n")
    print("| study | metric | targets | below 10 % | between | above 90 % | off by, median | by its own law |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for study in arguments.studies:
        for name in METRICS.get(study, ["accuracy", "loss"]):
            rows = curves_of(RESULTS / study / "evaluations.csv", metric_named(name))
            pairs = [pair for share in arguments.short for pair in beside_others(rows, share, arguments.draws)]
            if pairs:
                along, alone = ([pair[place] for pair in pairs] for place in (0, 1))
                cells = [study, name, len(pairs), shares_of(along), error_of(along), error_of(alone)]
                print(f"| {' | '.join(map(str, cells))} |")
    for title, short in (("all rows equally long", None), ("all rows but two short", arguments.short)):
        print(f"\n| odds of the first, {title} | questions | expected right | right |")
        print("| --- | ---: | ---: | ---: |")
        asked: list[tuple[float, bool]] = []
        for study in arguments.studies:
            metric = metric_named(METRICS.get(study, ["accuracy"])[0])
            rows = curves_of(RESULTS / study / "evaluations.csv", metric)
            asked += answered(rows, arguments.cut, arguments.draws, arguments.questions, short)
        for low, high in pairwise((0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.01)):
            inside = [(told, right) for told, right in asked if low <= told < high]
            if inside:
                expected, right = (fmean(float(one[place]) for one in inside) for place in (0, 1))
                print(f"| {low:g} to {min(high, 1):g} | {len(inside)} | {expected:.0%} | {right:.0%} |")


class Row(NamedTuple):
    """A row of a table: a method with its options on some nodes."""

    label: str
    method: str
    nodes: str


def curves_of(path: Path, metric: Metric) -> list[tuple[Row, Curve]]:
    points: dict[tuple[Row, str], list[Evaluation]] = defaultdict(list)
    with path.open() as file:
        for line in csv.DictReader(file):
            if line[metric.name] and "schedule" not in line["method_label"]:
                label = f"{line['workload_label']} {line['method_label']} {line['nodes']}"
                row = Row(label=label, method=line["method"], nodes=line["nodes"])
                points[row, line["cell"]].append(
                    Evaluation(
                        step=int(line["step"]), samples=int(line["samples"]), train_s=float(line["train_s"]),
                        wall_s=float(line["wall_s"]), assemble_s=0.0, evaluate_s=0.0, bytes_sent_per_node=0,
                        bytes_received_per_node=0, train_loss=None, metrics={metric.name: float(line[metric.name])},
                    )
                )  # fmt: skip
    return [(row, curve_of(evaluations, metric)) for (row, _), evaluations in points.items()]


def curve_of(evaluations: list[Evaluation], metric: Metric) -> Curve:
    seconds = tuple(evaluation.train_s for evaluation in evaluations)
    return Curve(metric=metric, evaluations=tuple(evaluations), clock="train_s", seconds=seconds)


class Told(NamedTuple):
    """A true step to a target: the share of draws below it, and the median draw over it."""

    place: float
    ratio: float


def told_of(found: Floats, true: float) -> Told:
    """`found`, the draws, beside the true step."""
    middle = float(np.quantile(found, 0.5, method="lower"))
    return Told(place=float((found < true).mean()), ratio=middle / true)


def shares_of(told: list[Told]) -> str:
    """Cells: the shares of true steps below, in and above the range of 8 of 10 draws."""
    low, high = fmean(one.place < 0.1 for one in told), fmean(one.place > 0.9 for one in told)
    return " | ".join(f"{share:.0%}" for share in (low, 1 - low - high, high))


def error_of(told: list[Told]) -> str:
    """A cell: the median factor between estimated and true steps."""
    return f"{median(math.exp(abs(math.log(one.ratio))) if one.ratio else math.inf for one in told):.2f}×"


def extrapolated(curves: list[Curve], cuts: list[float], draws: int) -> list[Told]:
    """What the start of each curve tells of its later values."""
    return [
        told_of(steps_to_target([probe], value, draws=draws, seed=0)[probe.label].by_seed[0], true)
        for number, curve in enumerate(curves)
        for kept in sorted({max(FEWEST, int(len(curve.evaluations) * cut)) for cut in cuts})
        for probe in [Candidate(method="probe", label=f"{number} {kept}", curves={0: begun(curve, kept)})]
        for value, true in later(curve, kept)
    ]


def begun(curve: Curve, kept: int) -> Curve:
    """The first `kept` evaluations of `curve`."""
    return curve_of(list(curve.evaluations[:kept]), curve.metric)


def later(curve: Curve, kept: int) -> list[tuple[float, float]]:
    """Each value of `curve` that is better than all of its first `kept`, and the step that reaches it."""
    best = begun(curve, kept).best()
    found = []
    for value in curve.values[kept:]:
        if value is not None and best is not None and curve.metric.better(value, best):
            true = time_to_target(curve, value)
            assert true is not None
            found.append((value, true.step))
    return found


def beside_others(rows: list[tuple[Row, Curve]], share: float, draws: int) -> list[tuple[Told, Told]]:
    """What a share of the steps of each curve tells of its later values: along whole curves, and by its own law.

    These are one of each other row on equal nodes, and that of the seed after that of the short one.
    """
    by_nodes = rivals_of(rows)
    found = []
    for rivals in by_nodes.values():
        for row, curves in rivals.items():
            for seed, curve in enumerate(curves):
                others = [
                    Candidate(method=other.method, label=other.label, curves={0: own[(seed + 1) % len(own)]})
                    for other, own in rivals.items()
                    if other != row
                ]
                last = curve.evaluations[-1].step
                kept = max(2, sum(evaluation.step <= share * last for evaluation in curve.evaluations))
                probe = Candidate(method=row.method, label=row.label, curves={0: begun(curve, kept)})
                for value, true in later(curve, kept) if others else ():
                    along, alone = (
                        steps_to_target(all_of, value, draws=draws, seed=0)[probe.label].by_seed[0]
                        for all_of in ([probe, *others], [probe])
                    )
                    found.append((told_of(along, true), told_of(alone, true)))
    return found


def rivals_of(rows: list[tuple[Row, Curve]]) -> dict[str, dict[Row, list[Curve]]]:
    """The curves of each row, by nodes."""
    by_nodes: dict[str, dict[Row, list[Curve]]] = defaultdict(lambda: defaultdict(list))
    for row, curve in rows:
        by_nodes[row.nodes][row].append(curve)
    return by_nodes


def between_seeds(rows: list[tuple[Row, Curve]]) -> list[float]:
    """The standard deviation of the log of steps to each level, for rows all of whose seeds reached it."""
    by_row: dict[Row, list[Curve]] = defaultdict(list)
    for row, curve in rows:
        by_row[row].append(curve)
    spreads = []
    for curves in by_row.values():
        for level in LEVELS:
            reached = [
                found for curve in curves if (found := time_to_target(curve, level)) and not found.from_start
            ]
            if len(reached) == len(curves) > 1:
                spreads.append(float(np.std([math.log(found.step) for found in reached], ddof=1)))
    return spreads


def between_rows(rows: list[tuple[Row, Curve]]) -> list[float]:
    """The standard deviation of the log of the ratio of two rows' steps to each level, for rows on equal nodes."""
    found = []
    for rivals in rivals_of(rows).values():
        for level in LEVELS:
            reached = [there for own in rivals.values() if (there := time_to_target(own[0], level))]
            logs = [math.log(there.step) for there in reached if not there.from_start and there.step > 0]
            if len(logs) > 2:
                found.append(math.sqrt(2) * float(np.std(logs, ddof=1)))
    return found


def answered(
    rows: list[tuple[Row, Curve]], cuts: list[float], draws: int, questions: int, short: list[float] | None
) -> list[tuple[float, bool]]:
    """Top odds of each question to rows on equal nodes, and whether that row was first.

    short: all rows but two, other ones in each question, end at one of these shares.
    """
    random = np.random.default_rng(0)
    found = []
    for rivals in rivals_of(rows).values():
        seeds = min(map(len, rivals.values()))
        if len(rivals) < (2 if short is None else 3) or seeds < 2:
            continue
        for left, cut, level in itertools.product(range(seeds), cuts, LEVELS):
            true = {row.label: time_to_target(curves[left], level) for row, curves in rivals.items()}
            steps = {label: np.array([there.step]) for label, there in true.items() if there is not None}
            if len(steps) < len(rivals):
                continue
            shares = np.full(len(rivals), cut)
            if short is not None:
                shares[random.permutation(len(rivals))[2:]] = random.choice(short)
            probes = [
                probe_of(row, curves, left, share)
                for (row, curves), share in zip(rivals.items(), shares, strict=True)
            ]
            to_target = steps_to_target(probes, level, draws=draws, seed=0)
            for _ in range(questions):
                drawn = drawn_at(probes, to_target, random, draws)
                odds = first(drawn.seconds())
                factor = random.uniform(BANDWIDTHS[0], BANDWIDTHS[-1], 1)
                seconds = [
                    drawn.clocks[one.label].at(steps[one.label], factor, np.ones(1))[0]
                    / (1 + random.normal(*replay_error(one.method, {})))
                    for one in probes
                ]
                found.append((float(odds.max()), int(odds.argmax()) == int(np.argmin(seconds))))
    return found


def probe_of(row: Row, curves: list[Curve], left: int, share: float) -> Candidate:
    """The seeds of `row` other than `left`, up to a share of their evaluations."""
    kept = {
        seed: begun(curve, max(FEWEST, int(len(curve.evaluations) * share)))
        for seed, curve in enumerate(curves)
        if seed != left
    }
    return Candidate(method=row.method, label=row.label, curves=kept)


def drawn_at(
    probes: list[Candidate], to_target: dict[str, StepsToTarget], random: np.random.Generator, draws: int
) -> Drawn:
    """Draws of `probes` on a cluster where each has random seconds a step that depend on the bandwidth."""
    clocks = {}
    for one in probes:
        step_s, share = math.exp(random.normal(0, 0.3)), random.uniform(0, 0.8)
        seconds = np.array([[0.0, step_s * (1 - share + share / factor)] for factor in BANDWIDTHS])
        clocks[one.label] = CandidateClock(
            steps=np.array([0.0, 1.0]), seconds=seconds, computing=1 - share, exposed=share, low=1.0, high=1.0,
            steady=1.0, mean_error=0.0,
        )  # fmt: skip
    spread, freedom = seed_spread(to_target.values())
    return Drawn(
        candidates=tuple(probes), to_target=to_target, clocks=clocks, checks={}, draws=draws,
        seed=int(random.integers(2**31)), seed_spread=spread, freedom=freedom, run_spread=0.0,
    )  # fmt: skip


if __name__ == "__main__":
    main()
