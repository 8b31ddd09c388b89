"""Replayed seconds to accuracy and final accuracies on CIFAR-10, beside those published of IST (arXiv 1910.02120).

    istbench compare configs/paper/cifar10.toml --data DIR --out RESULTS      # on a GPU: hours
    python scripts/paper/image_curves.py RESULTS results/paper-cifar10
    python scripts/paper/image_curves.py RESULTS TARGET                       # to try it

Any results of `cifar10` do, such as those of configs/light/cifar10.toml. Nothing is fitted: every run is replayed
on the clusters as their profiles have them. The table's footer says what differs from the published runs. Writes
README.md and seconds.csv.
"""

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from istbench.cluster.profile import load_profile
from istbench.report.output.formats import table_markdown
from istbench.report.published import read_figures
from istbench.report.tables.numbers import NOTHING, plain, rounded
from istbench.report.tables.table import ColumnOf, Entry, Table, fill
from istbench.results.load import Run, load_runs
from istbench.results.on_cluster import runs_on_clusters
from istbench.results.stats import median

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "figures.csv"
CLUSTERS = ("m5.2xlarge", "p3.2xlarge")
WORKLOAD = "cifar10"
Cell = tuple[str, int, int]  # method, local steps, nodes


class Row(NamedTuple):
    """A level of a method on a number of nodes: medians over seeds, infinite if most of them missed it."""

    cell: Cell
    level: float
    published: float | None
    steps: float
    replayed: tuple[float, ...]
    finals: tuple[float, ...]


def main() -> None:
    """Write the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--levels", default="0.8,0.85,0.88,0.9", help="accuracies, separated by commas")
    arguments = parser.parse_args()
    runs = [run for run in load_runs(arguments.results)[0] if run.done and run.header.workload == WORKLOAD]
    if not runs:
        parser.error(f"no finished run of {WORKLOAD} in {arguments.results}")
    rows = compared(runs, [float(level) for level in arguments.levels.split(",")])
    arguments.target.mkdir(parents=True, exist_ok=True)
    write_csv(rows, arguments.target / "seconds.csv")
    columns, entries = fill(COLUMNS, rows)
    title = "CIFAR-10: published seconds to accuracy, and ours replayed"
    table = Table(title=title, columns=columns, rows=entries, footer=tuple(footer(runs)), keys=4)
    (arguments.target / "README.md").write_text(table_markdown(table))


def compared(runs: Sequence[Run], levels: Sequence[float]) -> list[Row]:
    """A row for each cell and level, in the order of cells."""
    seconds = published_seconds()
    on_clusters, problems = runs_on_clusters(runs, [load_profile(name) for name in CLUSTERS])
    if problems:
        raise SystemExit("\n".join(problems))
    seeds: dict[Cell, list[tuple[Run, Sequence[Run]]]] = defaultdict(list)
    for run, replayed in zip(runs, zip(*on_clusters, strict=True), strict=True):
        seeds[cell_of(run)].append((run, replayed))
    return [
        Row(
            cell,
            level,
            seconds.get((*cell, level)),
            median([run.reached(level).step if run.reached(level) else math.inf for run, _ in found]),
            tuple(
                median([there.seconds if (there := on[place].reached(level)) else math.inf for _, on in found])
                for place in range(len(CLUSTERS))
            ),
            tuple(sorted(run.curve.evaluations[-1].metrics["accuracy"] for run, _ in found)),
        )
        for cell, found in sorted(seeds.items())
        for level in levels
    ]


def cell_of(run: Run) -> Cell:
    """Method, local steps and nodes of `run`."""
    config = run.header.config
    return config.method, int(config.method_options.get("local_steps", 1)), config.nodes


def published_seconds() -> dict[tuple[str, int, int, float], float]:
    """By method, local steps, nodes and accuracy."""
    return {
        (own.method, int(own.method_options.get("local_steps", 1)), own.nodes, own.level): own.seconds
        for own in read_figures(PUBLISHED)
        if own.workload == WORKLOAD and own.nodes and own.level is not None and own.seconds is not None
    }


def published_finals() -> dict[str, float]:
    """Final accuracy by method."""
    figures = [figure for figure in read_figures(PUBLISHED) if figure.workload == WORKLOAD]
    return {figure.method: figure.value for figure in figures if figure.value is not None}


def replayed_on(place: int) -> Callable[[Row], Entry]:
    """The entry of cluster number `place`."""
    return lambda row: rounded(row.replayed[place])


def final_entry(row: Row) -> Entry:
    """The median final accuracy, and the range over seeds."""
    middle = median(row.finals)
    spread = f" [{row.finals[0]:.3f}–{row.finals[-1]:.3f}]" if len(row.finals) > 1 else ""
    return Entry(text=f"{middle:.3f}{spread}", value=middle)


def published_final(row: Row) -> Entry:
    """The paper's final accuracy of the method."""
    value = published_finals().get(row.cell[0])
    return NOTHING if value is None else Entry(text=f"{value:.4f}", value=value)


COLUMNS: tuple[ColumnOf[Row], ...] = (
    ColumnOf(key="method", title="method", align="left", entry=lambda row: plain(row.cell[0])),
    ColumnOf(key="local_steps", title="local steps", entry=lambda row: plain(row.cell[1])),
    ColumnOf(key="nodes", title="nodes", entry=lambda row: plain(row.cell[2])),
    ColumnOf(key="level", title="accuracy", entry=lambda row: plain(f"{row.level:g}")),
    ColumnOf(
        key="published_s",
        title="published s",
        entry=lambda row: NOTHING if row.published is None else rounded(row.published),
    ),
    *(
        ColumnOf(key=f"{name}_s", title=f"{name} s", entry=replayed_on(place))
        for place, name in enumerate(CLUSTERS)
    ),
    ColumnOf(key="steps", title="local steps to it", entry=lambda row: rounded(row.steps)),
    ColumnOf(key="final", title="final accuracy", entry=final_entry),
    ColumnOf(key="published_final", title="published final", entry=published_final),
)


def footer(runs: Sequence[Run]) -> Iterable[str]:
    """The origin of the figures, and their differences from the published ones."""
    widths = sorted({str(run.header.config.workload_options["width"]) for run in runs})
    batches = sorted({run.header.config.batch_size for run in runs})
    yield f"Data: {', '.join(sorted({run.header.data_source.seen for run in runs}))}."
    yield (
        f"ResNet18 has width {', '.join(widths)}, and 64 in the paper. A minibatch has "
        f"{', '.join(map(str, batches))} images a node. Seconds are replayed, not measured, and nothing is fitted."
    )
    yield (
        "Published: arXiv 1910.02120, read off its curves, to 3 to 5 %. Its cluster of m5.2xlarge has no size "
        "there (we infer 8). Its batch size, augmentation and learning rates are not known."
    )
    yield "Medians over seeds. ∞: most seeds miss it within their budget. –: not published."


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """A row for each cell and level."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [f"{name}_s" for name in CLUSTERS]
        writer.writerow(["method", "local_steps", "nodes", "accuracy", "published_s", *names, "steps", "finals"])
        for row in rows:
            values: list[Any] = [row.published, *row.replayed, row.steps]
            known = ["" if value is None or math.isinf(value) else f"{value:.6g}" for value in values]
            writer.writerow([*row.cell, row.level, *known, " ".join(f"{final:.4f}" for final in row.finals)])


if __name__ == "__main__":
    main()
