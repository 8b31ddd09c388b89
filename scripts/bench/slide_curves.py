"""Precision over epochs and over train seconds: dense, with random outputs, and with outputs that hashing finds.

    istbench compare configs/light/wide.toml --data DIR --out RESULTS
    python scripts/bench/slide_curves.py RESULTS results/slide
    python scripts/bench/slide_curves.py --redraw results/slide  # only the picture, from its curves.csv
    python scripts/bench/slide_curves.py RESULTS TARGET          # to try it

The script writes curves.csv, with a line for each evaluation, and a picture. It prints tables of precision at the
end of every epoch, and of train seconds to some levels. Seconds count only if nothing else ran; `--no-seconds`
leaves them out.
"""

import argparse
import csv
import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure

from istbench.report.output.figure import write_figure
from istbench.report.palette import method_styles
from istbench.results.load import Run, load_runs

METHODS = ("model_parallel", "sampled_softmax", "dslide")
LEVELS = (0.3, 0.4, 0.5, 0.55, 0.58)


@dataclass(frozen=True)
class Point:
    """An evaluation of a run on `data`.

    epoch: passes over the data so far. train_s: NaN if times do not count. active, recall: for the steps before,
    mean active outputs of a sample, and recall of the top 100; NaN if unknown.
    """

    method: str
    seed: int
    data: str
    epoch: float
    train_s: float
    precision: float
    active: float
    recall: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("target", type=Path)
    parser.add_argument("--redraw", action="store_true", help="draw the curves in TARGET, without results")
    parser.add_argument("--no-seconds", action="store_true", help="leave out times, because the machine was shared")
    arguments = parser.parse_args()
    file = arguments.target / "curves.csv"
    if arguments.redraw:
        points = read(file)
    elif arguments.results is None:
        parser.error("give RESULTS and TARGET, or --redraw TARGET")
    else:
        runs = [run for run in load_runs(arguments.results)[0] if run.done]
        points = [point for run in runs for point in points_of(run, timed=not arguments.no_seconds)]
        arguments.target.mkdir(parents=True, exist_ok=True)
        write(points, file)
    write_figure(lambda figure: draw(figure, points), arguments.target / "curves")
    print(epochs_table(points))
    if timed(points):
        print("\n" + seconds_table(points))


def points_of(run: Run, *, timed: bool) -> Iterable[Point]:
    """The evaluations of `run`, whose budget is a number of epochs."""
    config = run.header.config
    an_epoch = run.curve.evaluations[-1].samples / float(run.header.budget.removesuffix(" epochs"))
    for evaluation in run.curve.evaluations:
        metrics = evaluation.metrics
        yield Point(
            config.method,
            config.seed,
            run.header.data_source.seen,
            round(evaluation.samples / an_epoch, 4),
            round(evaluation.train_s, 2) if timed else math.nan,
            round(value_of(metrics.get("precision@1")), 4),
            round(value_of(metrics.get("active_outputs")), 1),
            round(value_of(metrics.get("recall@100")), 4),
        )


def value_of(number: float | None) -> float:
    """`number`, or NaN for None."""
    return math.nan if number is None else number


def write(points: Iterable[Point], file: Path) -> None:
    """Write `points` as CSV, with an empty field for a missing number."""
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, list(Point.__annotations__))
        writer.writeheader()
        for point in points:
            own = asdict(point)
            writer.writerow({name: "" if value != value else value for name, value in own.items()})


def read(file: Path) -> list[Point]:
    """The points in a file of `write`."""
    with file.open(newline="") as opened:
        return [point_in(row) for row in csv.DictReader(opened)]


def point_in(row: dict[str, str]) -> Point:
    words = row["method"], int(row["seed"]), row["data"]
    return Point(*words, *(float(text or "nan") for text in list(row.values())[3:]))


def timed(points: Iterable[Point]) -> bool:
    """Whether all points have seconds."""
    return all(not math.isnan(point.train_s) for point in points)


def runs_of(points: Iterable[Point], method: str) -> list[list[Point]]:
    """The points of every seed of `method`, by rising epoch."""
    own: dict[int, list[Point]] = {}
    for point in points:
        if point.method == method:
            own.setdefault(point.seed, []).append(point)
    return [sorted(run, key=lambda point: point.epoch) for _, run in sorted(own.items())]


def epochs_table(points: list[Point]) -> str:
    """Precision, active outputs and recall at the ends of epochs."""
    last = round(max(point.epoch for point in points))
    lines = [
        "| method | after epoch | P@1, median [min-max] of seeds | active | recall@100 |",
        "| :--- | ---: | ---: | ---: | ---: |",
    ]
    for method in METHODS:
        for epoch in range(1, last + 1):
            own = [min(run, key=lambda point: abs(point.epoch - epoch)) for run in runs_of(points, method)]
            if own:
                active = statistics.median(point.active for point in own)
                recall = statistics.median(point.recall for point in own)
                said = [
                    "" if math.isnan(active) else f"{active:,.0f}",
                    "" if math.isnan(recall) else f"{recall:.2f}",
                ]
                lines.append(
                    f"| {method} | {epoch} | {spread([point.precision for point in own], 3)} | {' | '.join(said)} |"
                )
    return "\n".join(lines)


def seconds_table(points: list[Point]) -> str:
    """Train seconds to each level of precision, infinite for a miss."""
    lines = [
        "| method | " + " | ".join(f"s to {level:g}" for level in LEVELS) + " |",
        "| :--- |" + " ---: |" * len(LEVELS),
    ]
    for method in METHODS:
        runs = runs_of(points, method)
        if runs:
            reached = [spread([seconds_to(run, level) for run in runs], 1) for level in LEVELS]
            lines.append(f"| {method} | {' | '.join(reached)} |")
    return "\n".join(lines)


def seconds_to(run: list[Point], level: float) -> float:
    """Train seconds at which `run` reaches `level`, interpolated between two evaluations."""
    before = run[0]
    for point in run:
        if point.precision >= level:
            part = (level - before.precision) / (point.precision - before.precision) if point is not before else 0
            return before.train_s + part * (point.train_s - before.train_s)
        before = point
    return math.inf


def spread(values: list[float], digits: int) -> str:
    """The median and the range of `values`; a dash for each miss, and one dash if all are misses."""
    if all(map(math.isinf, values)):
        return "-"
    middle, least, most = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} [{least}-{most}]".replace("inf", "-")


def draw(figure: Figure, points: list[Point]) -> None:
    """Draw precision against epochs, and against train seconds if they count; a thin line for each seed."""
    figure.suptitle(", ".join(sorted({point.data for point in points})), fontsize="medium")
    axes = [("epoch", "epochs"), *([("train_s", "train seconds")] if timed(points) else [])]
    figure.set_size_inches(4.6 * len(axes) + 1.6, 4.2)
    styles = method_styles([(method, method) for method in METHODS])
    areas = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for area, (name, label) in zip(areas, axes, strict=True):
        for method in METHODS:
            style = styles[method]
            for number, run in enumerate(runs_of(points, method)):
                area.plot(
                    [getattr(point, name) for point in run],
                    [point.precision for point in run],
                    style.line, color=style.colour, marker=style.marker, markersize=3, linewidth=1,
                    label=method if number == 0 else None,
                )  # fmt: skip
        area.set_xlabel(label)
        area.set_ylim(bottom=0)
        area.set_xlim(left=0)
        area.grid(alpha=0.25)
        area.spines[["top", "right"]].set_visible(False)
    areas[0].set_ylabel("precision@1")
    handles, labels = areas[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)


if __name__ == "__main__":
    main()
