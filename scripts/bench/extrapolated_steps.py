"""How well `istbench advise` extrapolates: curves cut short, and the steps at which their rest reached each level.

    python scripts/bench/extrapolated_steps.py
    python scripts/bench/extrapolated_steps.py --studies speech-synthetic --draws 50 --cut 0.5    # to try it

Each finished curve of the studies in results/ ends early, after each share `--cut` of its evaluations. Every later
value that is better than all before the cut is a target. Printed: how often the true step lies below the 10 %
quantile of the draws, between both and above the 90 % one, the median of estimated over true steps, and the spread
of the log of steps to a target between seeds. Curves with a schedule of the learning rate are left out, because
their ends differ with the budget.
"""

import argparse
import csv
import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median

import numpy as np

from istbench.advise.candidate import Candidate
from istbench.advise.reach import reach_of
from istbench.results.curves import Curve, time_to_target
from istbench.results.events import Evaluation
from istbench.results.metrics import Metric, metric_named

RESULTS = Path(__file__).parents[2] / "results"
METRICS = {"extreme": ["precision@1"]}
LEVELS = [0.05 * step for step in range(4, 20)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    studies = ["speech-synthetic", "speech-recorded", "streaming-speech", "extreme"]
    parser.add_argument("--studies", nargs="+", default=studies)
    parser.add_argument("--cut", nargs="+", type=float, default=[0.3, 0.45, 0.6])
    parser.add_argument("--draws", type=int, default=400)
    arguments = parser.parse_args()
    print("| study | metric | targets | below 10 % | between | above 90 % | estimated over true |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    spreads = []
    for study in arguments.studies:
        for name in METRICS.get(study, ["accuracy", "loss"]):
            rows = curves_of(RESULTS / study / "evaluations.csv", metric_named(name))
            places, ratios = extrapolated([curve for _, curve in rows], arguments.cut, arguments.draws)
            low, high = fmean(place < 0.1 for place in places), fmean(place > 0.9 for place in places)
            shares = " | ".join(f"{share:.0%}" for share in (low, 1 - low - high, high))
            print(f"| {study} | {name} | {len(places)} | {shares} | {median(ratios):.2f} |")
            if name != "loss":
                spreads += between_seeds(rows)
    pooled = math.sqrt(fmean(spread**2 for spread in spreads))
    print(f"\nBetween seeds: median {median(spreads):.3f}, root of the mean square {pooled:.3f}.")


def curves_of(path: Path, metric: Metric) -> list[tuple[str, Curve]]:
    """The curves in `path`, each with the name of its row."""
    points: dict[tuple[str, str], list[Evaluation]] = defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            if row[metric.name] and "schedule" not in row["method_label"]:
                named = f"{row['workload_label']} {row['method_label']} {row['nodes']}"
                points[named, row["cell"]].append(
                    Evaluation(
                        step=int(row["step"]), samples=int(row["samples"]), train_s=float(row["train_s"]),
                        wall_s=float(row["wall_s"]), assemble_s=0.0, evaluate_s=0.0, bytes_sent_per_node=0,
                        bytes_received_per_node=0, train_loss=None, metrics={metric.name: float(row[metric.name])},
                    )
                )  # fmt: skip
    return [(named, curve_of(evaluations, metric)) for (named, _), evaluations in points.items()]


def curve_of(evaluations: list[Evaluation], metric: Metric) -> Curve:
    seconds = tuple(evaluation.train_s for evaluation in evaluations)
    return Curve(metric=metric, evaluations=tuple(evaluations), clock="train_s", seconds=seconds)


def extrapolated(curves: list[Curve], cuts: list[float], draws: int) -> tuple[list[float], list[float]]:
    """The place of each true step among its draws, 0 to 1, and the median draw over the true step."""
    places, ratios = [], []
    for number, curve in enumerate(curves):
        for kept in sorted({max(4, int(len(curve.evaluations) * cut)) for cut in cuts}):
            part = curve_of(list(curve.evaluations[:kept]), curve.metric)
            best = part.best()
            for value in curve.values[kept:]:
                if value is None or best is None or not curve.metric.better(value, best):
                    continue
                true = time_to_target(curve, value)
                assert true is not None
                candidate = Candidate(method="probe", label=f"{number} {kept}", curves={0: part})
                found = reach_of(candidate, value, draws=draws, seed=0).by_seed[0]
                places.append(float((found < true.step).mean()))
                ratios.append(float(np.quantile(found, 0.5, method="lower")) / true.step)
    return places, ratios


def between_seeds(rows: list[tuple[str, Curve]]) -> list[float]:
    """The standard deviation of the log of steps to each level, for rows all of whose seeds reached it."""
    by_row: dict[str, list[Curve]] = defaultdict(list)
    for named, curve in rows:
        by_row[named].append(curve)
    spreads = []
    for curves in by_row.values():
        for level in LEVELS:
            reached = [
                found for curve in curves if (found := time_to_target(curve, level)) and not found.from_start
            ]
            if len(reached) == len(curves) > 1:
                spreads.append(float(np.std([math.log(found.step) for found in reached], ddof=1)))
    return spreads


if __name__ == "__main__":
    main()
