"""The table of smol_diloco: final losses by interval, outer learning rate and rule, ours beside the published.

    istbench compare configs/paper/diloco.toml --data input.txt --out RESULTS    # hours on two cores
    python scripts/bench/smol_diloco.py RESULTS results/diloco
    python scripts/bench/smol_diloco.py RESULTS TARGET                           # to try it

Reads the finished runs of `diloco` and `ddp` in RESULTS, and the rows of smol_diloco in
istbench/studies/reproduce/published/figures.csv. Writes README.md, losses.csv and evaluations.csv (every curve).
The repository claims that shorter rounds need a smaller outer learning rate. The sentences on the claim follow
from the losses: the best rate for each number of local steps, by its median over seeds.
"""

import argparse
import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cells import counted_runs, with_ends

from istbench.base.csv_text import csv_text
from istbench.base.errors import UserError
from istbench.report.output.formats import table_markdown
from istbench.report.phrases import joined
from istbench.report.tables.numbers import metric_value, number, with_interval
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Table, plain, table_of
from istbench.results.frame import write_evaluations
from istbench.results.load import Run
from istbench.results.stats import SeedMedian, median, seed_median
from istbench.studies.reproduce.figures import Figure, read_rows
from istbench.studies.reproduce.paper import PUBLISHED

PAPER = "smol_diloco"
RULES = ("smol", "nesterov")


@dataclass(frozen=True, order=True)
class Place:
    """A cell of the table."""

    rule: str
    every: int
    rate: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The final losses of one setting over seeds: on all nodes, and of its control on one node if that ran.

    megabytes: MB that the busiest node sent.
    """

    place: Place
    losses: SeedMedian
    control: SeedMedian | None
    megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument(
        "--published", type=Path, default=PUBLISHED / "figures.csv", help="a table of published figures"
    )
    arguments = parser.parse_args()
    try:
        done, diverged = counted_runs(arguments.results)
        figures = [figure for figure in read_rows(arguments.published, Figure) if figure.paper == PAPER]
    except UserError as error:
        parser.error(str(error))
    runs = [*done, *diverged]
    cells = cells_of([run for run in runs if run.header.method == "diloco"])
    if not cells:
        parser.error(f"{arguments.results} has no finished run of diloco on several nodes")
    every_step = [run for run in runs if run.header.method == "ddp"]
    arguments.target.mkdir(parents=True, exist_ok=True)
    (arguments.target / "README.md").write_text(page(cells, every_step, figures, runs))
    write_csv(cells, arguments.target / "losses.csv")
    write_evaluations(arguments.results, arguments.target / "evaluations.csv")


def cells_of(runs: Sequence[Run]) -> list[Cell]:
    """The cells of runs of `diloco`, by rule, local steps and rate."""
    together: dict[Place, list[Run]] = defaultdict(list)
    alone: dict[Place, list[Run]] = defaultdict(list)
    for run in runs:
        (alone if run.header.nodes == 1 else together)[place_of(run)].append(run)
    return [
        Cell(
            place=place,
            losses=finals(members),
            control=finals(alone[place]) if place in alone else None,
            megabytes=median([run.curve.evaluations[-1].bytes_sent_per_node / 1e6 for run in members if run.done]),
        )
        for place, members in sorted(together.items())
    ]


def place_of(run: Run) -> Place:
    options = run.header.config.method_options
    return Place(str(options["outer_rule"]), int(options["local_steps"]), float(options["outer_lr"]))


def finals(runs: Sequence[Run]) -> SeedMedian:
    """The final losses; a run that diverged counts as infinite."""
    return seed_median(
        [math.inf if (final := run.curve.final()) is None or not run.done else final for run in runs]
    )


def best_of(cells: Sequence[Cell], rule: str) -> dict[int, list[Cell]]:
    """The cells of `rule` by local steps, the smallest median loss first."""
    found: dict[int, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.place.rule == rule:
            found[cell.place.every].append(cell)
    return {every: sorted(own, key=lambda cell: cell.losses.median) for every, own in sorted(found.items())}


def is_close(best: Cell, others: Sequence[Cell]) -> bool:
    """Whether the range over seeds of another rate overlaps with that of the best one."""
    return any(other.losses.low <= best.losses.high for other in others)


def claim(rates: Mapping[int, float]) -> str:
    """Whether the best rate falls as rounds get shorter, in words. rates: by local steps, rising."""
    values = list(rates.values())
    words = f"{joined([f'{rate:g}' for rate in values])} for {joined(map(str, rates))} local steps"
    if values != sorted(values):
        return f"{words}. The claim does not hold: a longer round has a smaller rate"
    return f"{words}. {'The claim holds' if values[0] < values[-1] else 'The claim does not hold: all are equal'}"


def verdict(cells: Sequence[Cell], rule: str) -> list[str]:
    best = best_of(cells, rule)
    if not best:
        return []
    rates = {every: own[0].place.rate for every, own in best.items()}
    lines = [f"- **{rule}**: best outer learning rates {claim(rates)}."]
    close = [every for every, (first, *others) in best.items() if is_close(first, others)]
    if close:
        lines.append(
            f"  Too close to call for {joined(map(str, close))} local steps: the range over seeds of another rate "
            "overlaps."
        )
    gains = [
        f"{own[0].control.median - own[0].losses.median:+.3f} ({every})"
        for every, own in best.items()
        if own[0].control is not None
    ]
    if gains:
        lines.append(f"  Loss of the control on one node above that of all nodes (local steps): {joined(gains)}.")
    return lines


def page(cells: Sequence[Cell], every_step: Sequence[Run], figures: Sequence[Figure], runs: Sequence[Run]) -> str:
    """README.md."""
    published = {int(figure.method_options["local_steps"]): figure for figure in figures}
    own_rates = {every: float(published[every].method_options["outer_lr"]) for every in sorted(published)}
    lines = [
        "# The table of smol_diloco\n",
        table_markdown(best_table(cells, every_step, published, runs)),
        "## Do shorter rounds need a smaller outer learning rate?\n",
        *([f"- **published**, one seed each: {claim(own_rates)}."] if own_rates else []),
        *(line for rule in RULES for line in verdict(cells, rule)),
        "",
        "## All rates\n",
        table_markdown(rates_table(cells)),
        "`scripts/bench/smol_diloco.py` writes this page, and evaluations.csv with the curve of every run. "
        "docs/diloco.md names the differences from the published runs.",
    ]
    return "\n".join(lines) + "\n"


def spread(values: SeedMedian | None) -> Entry:
    """The median and the range."""
    return NOTHING if values is None else Entry(text=with_interval(values, metric_value), value=values.median)


def best_table(
    cells: Sequence[Cell], every_step: Sequence[Run], published: Mapping[int, Figure], runs: Sequence[Run]
) -> Table:
    """A row for each number of local steps: the best of the rates, published and by both rules."""
    best = {rule: best_of(cells, rule) for rule in RULES}
    rows = sorted({cell.place.every for cell in cells})

    def theirs(every: int) -> Entry:
        figure = published.get(every)
        if figure is None or figure.value is None:
            return NOTHING
        return Entry(text=f"{figure.value:g} ({figure.method_options['outer_lr']})", value=figure.value)

    def ours(rule: str, every: int) -> Entry:
        if every not in best[rule]:
            return NOTHING
        cell = best[rule][every][0]
        return Entry(
            text=f"{with_interval(cell.losses, metric_value)} ({cell.place.rate:g})", value=cell.losses.median
        )

    def control(rule: str, every: int) -> Entry:
        return spread(best[rule][every][0].control) if every in best[rule] else NOTHING

    def sent(every: int) -> Entry:
        size = next(cell.megabytes for cell in cells if cell.place.every == every)
        return Entry(text=number(size), value=size)

    columns: list[ColumnOf[int]] = [
        ColumnOf(key="every", title="local steps", entry=plain),
        ColumnOf(key="published", title="published (rate)", entry=theirs),
    ]
    for rule in RULES:
        columns += [
            ColumnOf(key=rule, title=f"{rule} (rate)", entry=lambda every, rule=rule: ours(rule, every)),  # type: ignore[misc]
            ColumnOf(
                key=f"{rule}_control",
                title=f"{rule}, one node",
                entry=lambda every, rule=rule: control(rule, every),  # type: ignore[misc]
            ),
        ]
    columns.append(ColumnOf(key="megabytes", title="MB sent a node", entry=sent))
    head = runs[0].header
    seeds = sorted({run.header.seed for run in runs})
    beside = (
        [f"ddp ends at {with_interval(finals(every_step), metric_value)}, without an outer step."]
        if every_step
        else []
    )
    counts = {cell.losses.seeds for cell in cells}
    unequal = [f"Rates have {min(counts)} to {max(counts)} seeds: the last table."] if len(counts) > 1 else []
    return table_of(
        columns,
        rows,
        title=f"{head.workload_label}, {max(run.header.nodes for run in runs)} nodes, {head.budget}: final loss, "
        "the best outer learning rate in brackets",
        footer=(
            f"Data: {head.data_source.seen}. Batch size {head.batch_size} a node, seeds "
            f"{', '.join(map(str, seeds))}: the median [min–max]. Published: one seed.",
            *unequal,
            *beside,
            "One node: the same rate, the outer step alone, on a share of the samples.",
            "MB sent: counted, 2 (n - 1)/n of the changes a round on n nodes.",
        ),
        keys=1,
    )


def rates_table(cells: Sequence[Cell]) -> Table:
    """A row for each cell."""
    columns: list[ColumnOf[Cell]] = [
        ColumnOf(key="rule", title="outer rule", align="left", entry=lambda cell: cell.place.rule),
        ColumnOf(key="every", title="local steps", entry=lambda cell: cell.place.every),
        ColumnOf(key="rate", title="outer rate", entry=lambda cell: f"{cell.place.rate:g}"),
        ColumnOf(key="seeds", title="seeds", entry=lambda cell: cell.losses.seeds),
        ColumnOf(key="loss", title="final loss", entry=lambda cell: spread(cell.losses)),
        ColumnOf(key="control", title="on one node", entry=lambda cell: spread(cell.control)),
    ]
    return table_of(columns, cells, title="Final loss, the median [min–max]", footer=(), keys=3)


def write_csv(cells: Sequence[Cell], path: Path) -> None:
    """A row for each cell. A run without a number leaves a field empty."""
    rows = [
        {**dataclasses.asdict(cell.place), **fields("loss", cell.losses), **fields("one_node", cell.control)}
        for cell in cells
    ]
    path.write_text(csv_text(rows, ".6g"))


def fields(name: str, values: SeedMedian | None) -> dict[str, float | None]:
    """Median, least, largest and number of seeds."""
    if values is None:
        return dict.fromkeys([name, f"{name}_low", f"{name}_high", f"{name}_seeds"])
    return {**with_ends(name, values), f"{name}_seeds": values.seeds}


if __name__ == "__main__":
    main()
