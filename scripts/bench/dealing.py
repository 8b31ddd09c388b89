"""The study of `ist`'s options `deal`, `coverage` and `moving`, as one picture and a table.

    istbench compare configs/light/deal.toml --data DIR --out RESULTS
    python scripts/bench/dealing.py RESULTS results/dealing-cifar10
    python scripts/bench/dealing.py RESULTS TARGET --levels 0.6    # to try it

Final accuracy and replayed seconds to accuracies, against the bytes of a round. The table also has the arithmetic
of a local step. A round of every method has as many local steps as one of `ist`. Accuracies are those of the runs;
seconds are replayed on m5.2xlarge with other links. A diverged run counts as a miss. Writes README.md, cells.csv,
and the picture. README.md says whether a form of `ist` ends close to `local_sgd`, is lighter and is first, and at
which bandwidths. It names no first where a baseline has not finished, or where ranges overlap, and says so where
the first has one seed.
"""

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from cells import cautions_of
from dealing_findings import WANTED, beside_paper, findings, points_text
from dealing_picture import draw
from dealing_rows import (
    BANDWIDTHS,
    CLUSTER,
    SWEEP,
    Cell,
    Place,
    Row,
    accuracy_text,
    cell_of,
    check_alike,
    local_steps_of,
    rows_of,
)

from istbench.base.errors import UserError, is_divergence
from istbench.cluster.profile import bandwidth_text, select_clusters
from istbench.report.output.figure import write_figure
from istbench.report.output.formats import table_markdown
from istbench.report.phrases import Caution, count_nodes
from istbench.report.tables.numbers import number, rounded, with_interval
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, plain, table_of
from istbench.results.load import Run, load_runs
from istbench.results.on_cluster import runs_on_clusters
from istbench.results.stats import seed_median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--levels", default="0.6,0.7", help="accuracies, separated by commas")
    arguments = parser.parse_args()
    levels = [float(level) for level in arguments.levels.split(",")]
    try:
        found, problems = load_runs(arguments.results)
        runs = [run for run in found if run.done and run.header.result is not None]
        if not runs:
            raise UserError(f"no finished run in {arguments.results}")
        diverged = [run for run in found if is_divergence(run.header.error)]
        check_alike([*runs, *diverged])
        steps = local_steps_of(runs)
    except UserError as error:
        parser.error(str(error))
    on_clusters, unclocked = runs_on_clusters(runs, select_clusters([CLUSTER], SWEEP)[CLUSTER])
    rows = rows_of(runs, diverged, on_clusters, levels, steps)
    problems += [*unclocked, *left_out(found, {row.cell for row in rows})]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    arguments.target.mkdir(parents=True, exist_ok=True)
    write_csv(rows, levels, arguments.target / "cells.csv")
    of = f"{min(run.header.workload_label for run in runs)}, {runs[0].header.budget}"
    write_figure(lambda figure: draw(figure, rows, levels, of), arguments.target / "dealing")
    title = f"{of}: accuracy, bytes and arithmetic by the options of ist"
    missing = [Caution(f"Careful: {problem}.") for problem in problems]
    lines = (*footer(runs, steps), *cautions_of(on_clusters), *missing)
    table = table_of(columns_of(levels), rows, title=title, footer=lines, keys=7)
    listed = "\n".join(f"- {line}" for line in [*findings(rows, levels), *beside_paper(runs, rows)])
    text = f"{table_markdown(table)}\n### Findings\n\n{listed}\n\n![dealing](dealing.png)\n"
    (arguments.target / "README.md").write_text(text)


def columns_of(levels: Sequence[float]) -> tuple[ColumnOf[Row], ...]:

    def option(name: str, value: Callable[[Row], Entry]) -> ColumnOf[Row]:
        return ColumnOf(key=name, title=name.replace("_", " "), entry=value)

    def of_ist(row: Row, value: str | int) -> Entry:
        return plain(value if row.cell.of_ist else "")

    return (
        option("nodes", lambda row: plain(row.cell.nodes)),
        ColumnOf(key="method", title="method", align="left", entry=lambda row: row.cell.method),
        option("deal", lambda row: of_ist(row, row.cell.deal)),
        option("coverage", lambda row: of_ist(row, row.cell.coverage)),
        option("moving", lambda row: of_ist(row, f"{row.cell.moving:g}")),
        option("warmup_rounds", lambda row: of_ist(row, row.cell.warmup_rounds)),
        option("widen", lambda row: plain(row.cell.widen)),
        option("seeds", lambda row: plain(len(row.finals))),
        ColumnOf(
            key="final",
            title="final accuracy",
            entry=lambda row: with_interval(seed_median(row.finals), accuracy_text),
        ),
        ColumnOf(key="megabytes", title="MB a round", entry=lambda row: rounded(row.megabytes)),
        ColumnOf(
            key="operations",
            title="GFLOP a step",
            entry=lambda row: NOTHING if row.operations is None else rounded(row.operations / 1e9),
        ),
        ColumnOf(key="step_ms", title="ms a step here", entry=lambda row: rounded(row.step_ms)),
        *(
            ColumnOf(
                key=f"to_{level:g}_{bandwidth_text(bits)}",
                title=f"s to {level:g}, {bandwidth_text(bits)}",
                entry=lambda row, place=(level, bits): seconds_entry(row, place),  # type: ignore[misc]
            )
            for level in levels
            for bits in BANDWIDTHS
        ),
    )


def seconds_entry(row: Row, place: Place) -> Entry:
    """The seconds over seeds. Those of a row with warm-up rounds are known to be too small."""
    time = row.time(place)
    if time is None:
        return NOTHING
    if not time.reached:
        return rounded(math.inf)
    bound = "≥ " if row.cell.warmup_rounds else ""
    return Entry(text=bound + with_interval(time, number), value=time.median)


def footer(runs: Sequence[Run], steps: int) -> Iterable[str]:
    """The origin of the figures."""
    yield f"Data: {', '.join(sorted({run.header.data_source.seen for run in runs}))}."
    yield f"Seconds are replayed on {CLUSTER} with these links, not measured. ∞: missed within the budget."
    yield f"A round has {steps} local steps, that of ddp too. Bytes are those that the busiest node sends."
    yield "Arithmetic counts the matrix products of a local step."
    yield "Medians over seeds, with their range. ms a step: measured here, with exchanges, on shared cores."
    yield "A unit on every node (coverage = nodes) is local_sgd, bit for bit."
    near = " or ".join(f"{points_text(points)} on {count_nodes(nodes)}" for nodes, points in WANTED.items())
    yield (
        f"Near enough: at most {near} behind local_sgd in final accuracy. Lighter: fewer bytes a round and less "
        "arithmetic than local_sgd. First: clearly sooner than every method that deals no units."
    )
    yield (
        "Too close to call: the ranges over seeds overlap, each widened by the error of its method's replays in a "
        "lab, where known. A row of one seed has only this error for its range."
    )
    if any(run.header.config.method_options.get("warmup_rounds") for run in runs):
        yield Caution(
            "≥: a lower bound. The replay takes the rounds of warmup_rounds for later ones, which compute and "
            "usually send less. No comparison of seconds has these rows. Their arithmetic counts steps of "
            "local_sgd for the warm-up."
        )


def left_out(found: Sequence[Run], shown: Iterable[Cell]) -> Iterator[str]:
    """A line for each run that has not finished. shown: cells that have a row."""
    for run in found:
        if is_divergence(run.header.error):
            counted = "counts as a miss" if cell_of(run) in shown else "has no row, because no seed finished"
            yield f"{run.header.cell} diverged and {counted}"
        elif not run.done:
            yield f"{run.header.cell} has not finished and is left out (status: {run.header.status})"


def write_csv(rows: Sequence[Row], levels: Sequence[float], path: Path) -> None:
    """A row for each cell. A miss and an unknown number are empty."""
    keys = [(level, bits) for level in levels for bits in SWEEP]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [
            f"seconds to {level:g} at {bandwidth_text(bits)}{part}"
            for level, bits in keys
            for part in ("", ", low", ", high", ", reached")
        ]
        writer.writerow([*Cell._fields, "seeds", "finals", "megabytes", "operations", "step_ms", *names])
        for row in rows:
            numbers: list[float | None] = [row.megabytes, row.operations, row.step_ms]
            for key in keys:
                time = row.time(key)
                numbers += [None] * 4 if time is None else [time.median, time.low, time.high, time.reached]
            known = ["" if number is None or math.isinf(number) else f"{number:.6g}" for number in numbers]
            finals = " ".join("" if math.isinf(final) else f"{final:.4f}" for final in row.finals)
            writer.writerow([*row.cell, len(row.finals), finals.strip(), *known])


if __name__ == "__main__":
    main()
