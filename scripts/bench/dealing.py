"""The study of `ist`'s options `deal`, `coverage` and `moving`, as one picture and a table.

    istbench compare configs/light/deal.toml --data DIR --out RESULTS
    python scripts/bench/dealing.py RESULTS results/dealing-cifar10
    python scripts/bench/dealing.py RESULTS TARGET --levels 0.6    # to try it

Final accuracy and replayed seconds to accuracies, against the bytes of a round and the arithmetic of a local step.
A round of every method has as many local steps as one of `ist`. Accuracies are those of the runs; seconds are
replayed on m5.2xlarge with other links. A diverged run counts as a miss. Writes README.md, cells.csv, and the
picture. README.md says whether a form of `ist` ends close to `local_sgd`, is lighter and is first, and at which
bandwidths. It names no first where a baseline has not finished, or where ranges overlap.
"""

import argparse
import csv
import dataclasses
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from istbench.cluster.profile import bandwidth_text, select_clusters
from istbench.cluster.trace_file import load_trace
from istbench.config.options import option_text
from istbench.errors import UserError, is_divergence
from istbench.registry import load_workload
from istbench.report.output.figure import write_figure
from istbench.report.output.formats import table_markdown
from istbench.report.palette import method_styles
from istbench.report.phrases import Caution, checks_line, count_nodes, doubt_lines, joined, unlike_lines
from istbench.report.published import read_figures
from istbench.report.row_time import ranges_overlap, replay_error
from istbench.report.tables.numbers import NOTHING, number, plain, rounded, with_interval
from istbench.report.tables.table import ColumnOf, Entry, Table, fill
from istbench.reproduce.matching import has
from istbench.reproduce.paper import PUBLISHED
from istbench.results.load import Run, load_runs
from istbench.results.on_cluster import runs_on_clusters
from istbench.results.stats import Estimate, estimate, median

CLUSTER = "m5.2xlarge"
BANDWIDTHS = (1e8, 1e9, 1e10)
"""Of the table and the picture, bits/s."""
SWEEP = (1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9, 2e9, 5e9, 1e10)
"""Of the search for the first method."""
WANTED = {2: 1.0, 4: 3.0}
"""By nodes: the points of accuracy behind `local_sgd` that are near enough."""
BASELINES = ("local_sgd", "ddp")
DEALING = ("ist", "streaming_ist")
"""Methods that deal units."""
STUDIED = ("deal", "coverage", "moving", "warmup_rounds")
"""Options of methods that tell cells apart. All other options must be equal."""
OF_RUNS = ("amp", "channels_last", "compile", "eval_every", "held_out")
"""Options of runs that must be equal too."""
COLOURS = {"ist all": "#D55E00", "ist late": "#7F2704", "ist other": "#FDAE6B"}
"""Of forms of `ist`: one hue in three strengths. Other methods have their colour of every report."""
MARKERS = {
    "coverage 1": "o",
    "coverage 2": "s",
    "coverage 3": "v",
    "coverage 4": "D",
    "warm-up": "P",
    "widened": "X",
}
BASELINE = "*"
RANGE: Mapping[str, Any] = {"color": "black", "linewidth": 1, "marker": "_", "markersize": 5}
SIZES = (10, 7, 4.5)
"""Of markers, by bandwidth."""
_MOST_CLOSE = 4
Place = tuple[float, float]
"""A level and a bandwidth in bit/s."""


class Cell(NamedTuple):
    """A cell of the study."""

    nodes: int
    method: str
    deal: str
    coverage: int
    moving: float
    warmup_rounds: int
    widen: int

    @property
    def label(self) -> str:
        """The method and its options. `deal` is always named, because workloads may have other defaults."""
        usual = {"coverage": 1, "moving": 1, "warmup_rounds": 0, "widen": 1}
        given = [f"{name}={getattr(self, name):g}" for name, value in usual.items() if getattr(self, name) != value]
        return " ".join([self.method, *([f"deal={self.deal}"] if self.of_ist else []), *given])

    @property
    def of_ist(self) -> bool:
        """Whether the method deals units."""
        return self.method in DEALING


@dataclass(frozen=True, kw_only=True)
class Row:
    """The seeds of a cell.

    Attributes:
        finals: final accuracies by seed; the worst value of the metric for a diverged run.
        megabytes: that the busiest node sends in a round. operations: of a local step; None if unknown. step_ms:
            measured. All are medians.
        warming: the share of the local steps before the first deal.
        seconds: by place, those of the seeds; infinite for a miss. A seed that reached the level counts only if its
            run has a trace.
        error: the largest one of replays of the method in a lab, as a share; 0 if unknown.
    """

    cell: Cell
    finals: tuple[float, ...]
    megabytes: float
    operations: float | None
    step_ms: float
    seconds: Mapping[Place, tuple[float, ...]]
    warming: float = 0.0
    error: float = 0.0

    @property
    def final(self) -> float:
        """The median of the final accuracies."""
        return median(self.finals)

    @property
    def seeds(self) -> str:
        """`1 seed`, `3 seeds`."""
        return f"{len(self.finals)} seed{'s' if len(self.finals) > 1 else ''}"

    def time(self, place: Place) -> Estimate | None:
        """The seconds over seeds; None if no seed is known."""
        return estimate(own) if (own := self.seconds[place]) else None


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The first row at a place.

    Attributes:
        close: it, and the rows whose ranges overlap with its own; the fastest comes first.
        rival: the best row of the other kind (`ist` or not); None if none reaches the level.
        ratio: the seconds of the rival over those of the first.
    """

    close: tuple[Row, ...]
    rival: Row | None
    ratio: float

    @property
    def first(self) -> Row:
        """The row with the smallest median."""
        return self.close[0]

    @property
    def decided(self) -> bool:
        """Whether all rows that may be the first are of one kind."""
        return all(row.cell.of_ist == self.first.cell.of_ist for row in self.close)

    @property
    def names(self) -> tuple[str, ...]:
        """Labels of the close rows, in an order that no bandwidth changes where nothing is decided."""
        labels = [row.cell.label for row in self.close]
        return tuple(labels if self.decided else sorted(labels))

    @property
    def key(self) -> tuple[tuple[str, ...], str | None]:
        """Equal at bandwidths that share a sentence: the close rows, and the rival where something is decided."""
        return self.names, self.rival.cell.label if self.decided and self.rival is not None else None


def main() -> None:
    """Write the study."""
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
    columns, entries = fill(columns_of(levels), rows)
    title = f"{of}: accuracy, bytes and arithmetic by the options of ist"
    lines = (*footer(runs, steps), *cautions(on_clusters, problems))
    table = Table(title=title, columns=columns, rows=entries, footer=lines, keys=7)
    listed = "\n".join(f"- {line}" for line in [*findings(rows, levels), *beside_paper(runs, rows)])
    text = f"{table_markdown(table)}\n### Findings\n\n{listed}\n\n![dealing](dealing.png)\n"
    (arguments.target / "README.md").write_text(text)


def check_alike(runs: Sequence[Run]) -> None:
    """Check that `runs` differ only in the cell and the seed.

    Raises:
        UserError: naming two runs that differ in something else, or that are one cell with one seed.
    """
    names: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        names[run.header.method] |= options_of(run).keys()
    workload_names = {name for run in runs for name in kind_of(run)}
    first: dict[str, tuple[str, str]] = {}
    seeds: dict[tuple[Cell, int], str] = {}
    for run in runs:
        name = run.header.cell
        # A method lacks options of others. Options that only some runs of a method record are at their default.
        own = {option: options_of(run).get(option, "its default") for option in names[run.header.method]}
        own |= {option: kind_of(run).get(option, "its default") for option in workload_names}
        for option, value in sorted(own.items()):
            known, other = first.setdefault(option, (value, name))
            if value != known:
                raise UserError(
                    f"{name} has {option} {value}, and {other} has {known}. Runs of a page differ only in "
                    f"{joined(STUDIED)}, widen, nodes and seeds; give the others a directory of their own"
                )
        twin = seeds.setdefault((cell_of(run), run.header.seed), name)
        if twin != name:
            raise UserError(f"{twin} and {name} are one cell with seed {run.header.seed} twice; delete one of them")


def kind_of(run: Run) -> dict[str, str]:
    """What all runs of a page share, by name: workload, budget, data, and options of workload and run."""
    head, config = run.header, run.header.config
    options = {name: value for name, value in config.workload_options.items() if name != "widen"}
    return {
        "workload": head.workload,
        "budget": head.budget,
        "batch size": str(head.batch_size),
        "data": head.data_source.fingerprint,
        **{name: option_text(value) for name, value in options.items()},
        **{name: str(getattr(config, name)) for name in OF_RUNS},
    }


def options_of(run: Run) -> dict[str, str]:
    """The options of the method, those at their default too, without those of the study."""
    options = {**run.header.method_defaults, **run.header.config.method_options}
    return {name: option_text(value) for name, value in options.items() if name not in STUDIED}


def local_steps_of(runs: Sequence[Run]) -> int:
    """The local steps of a round.

    Raises:
        UserError: if no run has rounds.
    """
    for run in runs:
        if steps := int(run.header.config.method_options.get("local_steps", 0)):
            return steps
    raise UserError("no finished run has the option local_steps, so the length of a round is unknown")


def rows_of(
    runs: Sequence[Run],
    diverged: Sequence[Run],
    on_clusters: Sequence[Sequence[Run]],
    levels: Sequence[float],
    steps: int,
) -> list[Row]:
    """A row for each cell with a finished run, in their order.

    diverged: each is a miss of its cell. on_clusters: runs with a trace on each link of `SWEEP`. steps: of a round.
    """
    replays = {there[0].header.cell: there for there in zip(*on_clusters, strict=True)}
    misses = Counter(cell_of(run) for run in diverged)
    cells: dict[Cell, list[Run]] = defaultdict(list)
    for run in runs:
        cells[cell_of(run)].append(run)
    rows = [row_of(cell, own, replays, misses[cell], levels, steps) for cell, own in sorted(cells.items())]
    return [with_warmup(row, rows) for row in rows]


def row_of(
    cell: Cell,
    runs: Sequence[Run],
    replays: Mapping[str, Sequence[Run]],
    misses: int,
    levels: Sequence[float],
    steps: int,
) -> Row:
    """The row of a cell: its runs, and their replays by name and bandwidth. Its arithmetic is a subnet's."""
    results = [result for run in runs if (result := run.header.result) is not None]
    metric = runs[0].curve.metric
    traced = [run for run in runs if run.header.cell in replays]
    works = [work for run in traced if (work := load_trace(run.directory.trace).meta.work) is not None]

    def seconds(level: float, number: int) -> Iterator[float]:
        for run in runs:
            if run.reached(level) is None:
                yield math.inf
            elif run in traced:
                there = replays[run.header.cell][number].reached(level)
                assert there is not None  # the replay moves evaluations in time only
                yield there.seconds

    finals = [metric.worst if (final := run.curve.final()) is None else final for run in runs]
    return Row(
        cell=cell,
        finals=tuple(sorted([*finals, *[metric.worst] * misses])),
        megabytes=median([result.bytes_sent_per_node / result.steps * steps / 1e6 for result in results]),
        operations=median([work.operations for work in works]) if works else None,
        step_ms=median([1e3 * result.train_s / result.steps for result in results]),
        seconds={
            (level, bits): (*seconds(level, number), *[math.inf] * misses)
            for level in levels
            for number, bits in enumerate(SWEEP)
        },
        warming=min(1.0, cell.warmup_rounds * steps / results[0].steps),
        error=replay_error(replays[run.header.cell][0] for run in traced),
    )


def with_warmup(row: Row, rows: Sequence[Row]) -> Row:
    """`row` with the arithmetic of its warm-up, in which a local step is that of `local_sgd` on as many nodes."""
    if not row.warming or row.operations is None:
        return row
    whole = next(
        (
            other.operations
            for other in rows
            if (other.cell.method, other.cell.nodes, other.cell.widen)
            == ("local_sgd", row.cell.nodes, row.cell.widen)
        ),
        None,
    )
    operations = None if whole is None else row.warming * whole + (1 - row.warming) * row.operations
    return dataclasses.replace(row, operations=operations)


def cell_of(run: Run) -> Cell:
    """The cell of `run`, with the defaults of options that it leaves out."""
    config = run.header.config
    options = config.method_options
    deal = options.get("deal", ["all"])
    return Cell(
        config.nodes,
        config.method,
        deal if isinstance(deal, str) else ",".join(deal),
        int(options.get("coverage", 1)),
        float(options.get("moving", 1)),
        int(options.get("warmup_rounds", 0)),
        int(config.workload_options.get("widen", 1)),
    )


def columns_of(levels: Sequence[float]) -> tuple[ColumnOf[Row], ...]:
    """The columns of the table."""

    def option(name: str, value: Callable[[Row], Entry]) -> ColumnOf[Row]:
        return ColumnOf(key=name, title=name.replace("_", " "), entry=value)

    def of_ist(row: Row, value: str | int) -> Entry:
        return plain(value if row.cell.of_ist else "")

    return (
        option("nodes", lambda row: plain(row.cell.nodes)),
        ColumnOf(key="method", title="method", align="left", entry=lambda row: plain(row.cell.method)),
        option("deal", lambda row: of_ist(row, row.cell.deal)),
        option("coverage", lambda row: of_ist(row, row.cell.coverage)),
        option("moving", lambda row: of_ist(row, f"{row.cell.moving:g}")),
        option("warmup_rounds", lambda row: of_ist(row, row.cell.warmup_rounds)),
        option("widen", lambda row: plain(row.cell.widen)),
        option("seeds", lambda row: plain(len(row.finals))),
        ColumnOf(
            key="final",
            title="final accuracy",
            entry=lambda row: plain(with_interval(estimate(row.finals), accuracy_text)),
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


def accuracy_text(value: float) -> str:
    """An accuracy with three digits."""
    return "diverged" if math.isinf(value) else f"{value:.3f}"


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


def cautions(on_clusters: Sequence[Sequence[Run]], problems: Sequence[str]) -> Iterable[str]:
    """Warnings: errors of the replays, recordings on a busy machine, and runs that are not on the page."""
    times = [run.cluster for there in on_clusters for run in there if run.cluster is not None]
    doubts = {run.header.cell: doubt for run in on_clusters[0] if (doubt := run.doubt)}
    yield from checks_line(times)
    yield from unlike_lines(times)
    yield from doubt_lines(doubts, len(on_clusters[0]))
    yield from (Caution(f"Careful: {problem}.") for problem in problems)


def left_out(found: Sequence[Run], shown: Iterable[Cell]) -> Iterator[str]:
    """A line for each run that has not finished. shown: cells that have a row."""
    for run in found:
        if is_divergence(run.header.error):
            counted = "counts as a miss" if cell_of(run) in shown else "has no row, because no seed finished"
            yield f"{run.header.cell} diverged and {counted}"
        elif not run.done:
            yield f"{run.header.cell} has not finished and is left out (status: {run.header.status})"


def findings(rows: Sequence[Row], levels: Sequence[float]) -> Iterator[str]:
    """Lines on what the rows of each number of nodes show."""
    for nodes, found in groupby(rows, key=lambda row: row.cell.nodes):
        own = list(found)
        where = count_nodes(nodes)
        baseline, lacking = baseline_in(own, "local_sgd"), lacking_in(own)
        if lacking:
            yield f"{where}: {lacking}, so nothing is named first."
        elif baseline is not None:
            yield f"{where}, near enough, lighter and first: {verdict(own, baseline, levels)}."
        if baseline is not None and any(row.cell.of_ist for row in own):
            yield from gaps(own, baseline)
        if not lacking:
            yield from (f"{where}, to {level:g}: {firsts(own, level)}." for level in levels)


def baseline_in(rows: Sequence[Row], method: str) -> Row | None:
    """The row of a baseline, at the width of the study; None if it has not finished."""
    return next((row for row in rows if row.cell.method == method and row.cell.widen == 1), None)


def lacking_in(rows: Sequence[Row]) -> str:
    """The methods without a row or without seconds that compare, in words; empty if there are none."""
    there = {method: [row] for method in BASELINES if (row := baseline_in(rows, method)) is not None}
    there["ist"] = [row for row in rows if row.cell.of_ist]
    said = []
    for method in (*BASELINES, "ist"):
        own = there.get(method, [])
        if not own:
            said.append(f"`{method}` has not finished")
        elif not any(all(row.seconds.values()) for row in timed(own)):
            said.append(f"`{method}` has no replayed seconds that compare")
    return joined(said) if said else ""


def wanted_on(nodes: int) -> float:
    """The points behind `local_sgd` that are near enough."""
    return WANTED.get(nodes, min(WANTED.values()))


def verdict(rows: Sequence[Row], baseline: Row, levels: Sequence[float]) -> str:
    """The forms of `ist` that are near enough, lighter, and first at some bandwidth; or the reason why none is."""
    forms = sorted((row for row in rows if row.cell.of_ist and row.cell.widen == 1), key=lambda row: -row.final)
    if not forms:
        return "no form, because none of the width of `local_sgd` has finished"
    near = [row for row in forms if behind(row, baseline) <= wanted_on(baseline.cell.nodes)]
    if not near:
        return f"no form. The nearest is {beside(forms[0], baseline)}"
    light = [row for row in near if is_lighter(row, baseline)]
    if not light:
        return f"no form. Near enough, but not lighter: {several(near, baseline)}"
    others = [row for row in rows if not row.cell.of_ist]
    won = [f"`{row.cell.label}` ({row.seeds}; {words})" for row in light if (words := sooner(row, others, levels))]
    if won:
        return "; ".join(won)
    names = joined(f"`{row.cell.label}`" for row in light)
    if all(row.cell.warmup_rounds for row in light):
        return f"unknown. Near enough and lighter is {names}, but its replayed seconds are too small"
    return (
        f"no form. Near enough and lighter is {names}, but to "
        f"{' or '.join(f'{level:g}' for level in levels)} it is clearly sooner than "
        f"{joined(f'`{row.cell.label}`' for row in others)} at no bandwidth"
    )


def sooner(row: Row, others: Sequence[Row], levels: Sequence[float]) -> str:
    """The bandwidths at which `row` is clearly sooner than all `others`, by level; empty if there are none."""
    said = []
    for level in levels:
        leads = [(bits, lead_at(timed([row, *others]), (level, bits))) for bits in SWEEP]
        spans = [
            span_words([bits for bits, _ in found])
            for clear, found in groupby(leads, key=lambda pair: pair[1] is not None and pair[1].close == (row,))
            if clear
        ]
        if spans:
            said.append(f"to {level:g} {' and '.join(spans)}")
    return ", ".join(said)


def gaps(rows: Sequence[Row], baseline: Row) -> Iterator[str]:
    """How far the forms of `ist` end behind `baseline`, on as many nodes."""
    where, wanted = count_nodes(baseline.cell.nodes), wanted_on(baseline.cell.nodes)
    ranked = sorted((row for row in rows if row.cell.of_ist), key=lambda row: -row.final)
    lighter = [row for row in ranked if row.cell.widen == 1 and is_lighter(row, baseline)]
    near = [row for row in lighter if behind(row, baseline) <= wanted]
    less = "with fewer bytes and less arithmetic than `local_sgd`"
    yield f"{where}, at most {points_text(wanted)} behind and {less}: {several(near, baseline)}."
    yield f"{where}, the best two {less}: {several(lighter[:2], baseline)}."
    wide = [row for row in ranked if row.cell.widen > 1]
    if wide:
        yield f"{where}, wider models: {several(wide, baseline)}."


def behind(row: Row, baseline: Row) -> float:
    """Points of accuracy that `row` ends behind `baseline`, as its text shows them: to a hundredth."""
    points = 100 * (baseline.final - row.final)
    return round(points, 2) if math.isfinite(points) else math.inf


def points_text(points: float) -> str:
    """`1 point`, `3 points`."""
    return f"{points:g} point{'' if points == 1 else 's'}"


def is_lighter(row: Row, baseline: Row) -> bool:
    """Whether a node of `row` sends less and computes less than one of `baseline`; not if that is unknown."""
    if row.operations is None or baseline.operations is None:
        return False
    return row.megabytes < baseline.megabytes and row.operations < baseline.operations


def several(rows: Sequence[Row], baseline: Row) -> str:
    """Each of `rows`, in accuracy, bytes and arithmetic of `baseline`."""
    return "; ".join(beside(row, baseline) for row in rows) or "none"


def beside(row: Row, baseline: Row) -> str:
    """`row` in accuracy, bytes and arithmetic of `baseline`."""
    points = f"{0.0 - behind(row, baseline):+.2f} points"
    sent = f"{row.megabytes / baseline.megabytes:.2f} of the bytes"
    computed = "unknown arithmetic"
    if row.operations is not None and baseline.operations is not None:
        computed = f"{row.operations / baseline.operations:.2f} of the arithmetic"
    return f"`{row.cell.label}` {accuracy_text(row.final)} ({row.seeds}, {points}, {sent}, {computed})"


def timed(rows: Sequence[Row]) -> list[Row]:
    """Rows whose seconds compare: those without warm-up rounds, which the replay takes for later rounds."""
    return [row for row in rows if not row.cell.warmup_rounds]


def firsts(rows: Sequence[Row], level: float) -> str:
    """The first row to `level` at each bandwidth of `SWEEP`, and its lead over the best row of the other kind."""
    found = [(bits, lead_at(timed(rows), (level, bits))) for bits in SWEEP]
    leads = [(bits, lead) for bits, lead in found if lead is not None]
    if not leads:
        return "no run reaches it"
    parts = [lead_words(list(span)) for _, span in groupby(leads, key=lambda pair: pair[1].key)]
    won = any(lead.decided and lead.first.cell.of_ist for _, lead in leads)
    return "; ".join([*parts, *([] if won else ["`ist` is clearly first at no bandwidth"])])


def lead_words(span: Sequence[tuple[float, Lead]]) -> str:
    """The first row at neighbouring bandwidths that have the same close rows and the same rival."""
    where, lead = span_words([bits for bits, _ in span]), span[0][1]
    names = [f"`{name}`" for name in lead.names]
    more = [f"{len(names) - _MOST_CLOSE} more"] if len(names) > _MOST_CLOSE else []
    if not lead.decided:
        return f"too close to call {where}: {joined([*names[:_MOST_CLOSE], *more])}"
    fewer = lead.rival is not None and len(lead.first.finals) < len(lead.rival.finals)
    first = f"{names[0]} ({lead.first.seeds})" if fewer else names[0]
    words = f"{first} is first {where}, {over_rival([lead for _, lead in span])}"
    if len(names) == 1:
        return words
    return f"{words} (too close to call between it and {joined([*names[1:_MOST_CLOSE], *more])})"


def over_rival(leads: Sequence[Lead]) -> str:
    """The lead over the best row of the other kind, in words."""
    lead = leads[0]
    if lead.rival is None:
        return "and no baseline reaches it" if lead.first.cell.of_ist else "and no form of `ist` reaches it"
    low, high = (f"{end(lead.ratio for lead in leads):.2f}" for end in (min, max))
    return f"{low if low == high else f'{low} to {high}'} times as fast as `{lead.rival.cell.label}`"


def span_words(bandwidths: Sequence[float]) -> str:
    """`at 1 Gbit/s`, `from 10 Mbit/s to 1 Gbit/s`."""
    low, high = bandwidth_text(bandwidths[0]), bandwidth_text(bandwidths[-1])
    return f"at {low}" if low == high else f"from {low} to {high}"


def lead_at(rows: Sequence[Row], place: Place) -> Lead | None:
    """The first of `rows` at `place`; None if none reaches the level with more than half of its seeds."""
    known = [(time, row) for row in rows if (time := row.time(place)) is not None and math.isfinite(time.median)]
    if not known:
        return None
    ((fastest, first), *others) = sorted(known, key=lambda pair: pair[0].median)
    close = [row for time, row in others if ranges_overlap(fastest, first.error, time, row.error)]
    rivals = [(time, row) for time, row in others if row.cell.of_ist != first.cell.of_ist]
    rival = rivals[0][1] if rivals else None
    ratio = rivals[0][0].median / fastest.median if rivals and fastest.median else math.inf
    return Lead(close=(first, *close), rival=rival, ratio=ratio)


def beside_paper(runs: Sequence[Run], rows: Sequence[Row]) -> Iterator[str]:
    """A line with final values of a paper beside ours, if ours trained for the workload's own epochs at least."""
    head = runs[0].header
    options, source = head.config.workload_options, head.data_source
    figures = [
        figure
        for figure in read_figures(PUBLISHED / "figures.csv")
        if figure.value is not None
        and (figure.workload, figure.metric) == (head.workload, head.metric)
        and has(options, figure.options)
    ]
    if not figures or source.kind == "synthetic":
        return
    workload = load_workload(head.workload)
    assert head.result is not None
    if round(head.result.samples / source.train) < workload.epochs:
        return
    usual = {field.name: field.default for field in dataclasses.fields(workload.Options)}
    changed = [
        f"{name} {options[name]}, not {usual[name]}"
        for name in usual
        if options.get(name, usual[name]) != usual[name]
    ]
    published = ", ".join(f"`{figure.method}` {figure.value:.4f}" for figure in figures)
    ours = ", ".join(f"`{row.cell.label}` on {count_nodes(row.cell.nodes)} {row.final:.4f}" for row in rows)
    yield (
        f"Beside the paper ({joined(dict.fromkeys(figure.paper for figure in figures))}), final {head.metric}: "
        f"published {published}; here {ours}. Differences: here {'; '.join([*changed, head.budget, source.seen])}; "
        "the paper deals all units and names neither nodes nor epochs."
    )


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


def draw(figure: Any, rows: Sequence[Row], levels: Sequence[float], of: str) -> None:
    """Panels: accuracy and seconds downwards; bytes and arithmetic across, for each number of nodes.

    A level that no row reaches has no panel.
    """
    nodes = sorted({row.cell.nodes for row in rows})
    levels = [level for level in levels if any(any(shown_seconds(row, level)) for row in rows)]
    figure.set_size_inches(1 + 3.4 * 2 * len(nodes), 1.6 + 3.2 * (1 + len(levels)))
    panels = figure.subplots(1 + len(levels), 2 * len(nodes), sharey="row", sharex="col", squeeze=False)
    tops = {level: top_of(rows, level) for level in levels}
    for place, count in enumerate(nodes):
        own = [row for row in rows if row.cell.nodes == count]
        for side, what in enumerate(("MB a node sends a round", "GFLOP of a local step")):
            column = panels[:, 2 * place + side]
            column[0].set_title(f"{count} nodes", fontsize="medium")
            column[-1].set_xlabel(what, fontsize="medium")
            for panel in column:
                if side == 0:
                    panel.set_xscale("log")
                    plain_ticks(panel.xaxis, (1, 2, 3, 5))
                panel.grid(alpha=0.2)
                panel.spines[["top", "right"]].set_visible(False)
            for row in own:
                x = row.megabytes if side == 0 else row.operations and row.operations / 1e9
                draw_row(column, row, x, levels, tops)
    panels[0, 0].set_ylabel("final accuracy", fontsize="medium")
    for panel, level in zip(panels[1:, 0], levels, strict=True):
        panel.set_yscale("log")
        plain_ticks(panel.yaxis, (1, 1.5, 2, 3, 4, 5, 7))
        panel.set_ylabel(f"replayed seconds to {level:g}", fontsize="medium")
        if math.isfinite(tops[level]):
            panel.set_ylim(top=tops[level])
    figure.legend(handles=handles_of(rows), loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    figure.suptitle(f"From IST to local SGD: {of}", fontweight="bold")


def shown_seconds(row: Row, level: float) -> list[Estimate | None]:
    """The seconds to `level` at each of `BANDWIDTHS`; None where the picture has no point."""
    times = [row.time((level, bits)) for bits in BANDWIDTHS] if timed([row]) else [None] * len(BANDWIDTHS)
    return [time if time is not None and math.isfinite(time.median) else None for time in times]


def top_of(rows: Sequence[Row], level: float) -> float:
    """The top of the axis of seconds to `level`: ddp on slow links lies above. Infinite without other rows."""
    shown = [time for row in rows if row.cell.method != "ddp" for time in shown_seconds(row, level)]
    return 1.5 * max((time.median for time in shown if time is not None), default=math.inf)


def plain_ticks(axis: Any, digits: Sequence[float]) -> None:
    """Ticks of a logarithmic `axis` as plain numbers: the powers of ten times `digits`."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def draw_row(
    column: Sequence[Any], row: Row, x: float | None, levels: Sequence[float], tops: Mapping[float, float]
) -> None:
    """The points of a cell at `x`: its accuracy, and a line through its seconds at each bandwidth."""
    if x is None or x <= 0:
        return
    style = style_of(row.cell)
    column[0].plot([x], [row.final], linestyle="none", markersize=8, **style)
    draw_range(column[0], x, estimate(row.finals))
    for panel, level in zip(column[1:], levels, strict=True):
        times = shown_seconds(row, level)
        reached = [(time, size) for time, size in zip(times, SIZES, strict=True) if time is not None]
        panel.plot([x] * len(reached), [time.median for time, _ in reached], color=style["color"], linewidth=0.8)
        for time, size in reached:
            panel.plot([x], [time.median], linestyle="none", markersize=size, **style)
            draw_range(panel, x, time)
        slowest = times[0]
        if slowest is not None and slowest.median > tops[level]:
            panel.annotate(
                f"↑{slowest.median:.0f}", (x, tops[level]), xytext=(-4, -2), textcoords="offset points",
                ha="right", va="top", fontsize="small", color=style["color"],
            )  # fmt: skip


def draw_range(panel: Any, x: float, values: Estimate) -> None:
    """A bar with two ends over the range of several seeds, on top of their marker; none if a seed has no number."""
    ends = [values.low, values.high]
    if values.seeds > 1 and all(map(math.isfinite, ends)):
        panel.plot([x, x], ends, zorder=3, **RANGE)


def kind_of_colour(cell: Cell) -> str:
    """The name of a colour: a form of `ist`, or another method."""
    if cell.method != "ist":
        return cell.method
    return f"ist {cell.deal}" if cell.deal in ("all", "late") else "ist other"


def colour_of(kind: str) -> str:
    """The colour of a form of `ist`, or that of another method in every report."""
    return COLOURS.get(kind) or method_styles([(kind, kind)])[kind].colour


def shape_of(cell: Cell) -> str:
    """The name of a marker."""
    if cell.widen > 1:
        return "widened"
    return "warm-up" if cell.warmup_rounds else f"coverage {cell.coverage}"


def style_of(cell: Cell) -> dict[str, Any]:
    """Colour by what is dealt, filled if all units are dealt again in each round."""
    colour = colour_of(kind_of_colour(cell))
    filled = cell.moving == 1
    marker = MARKERS.get(shape_of(cell), "p") if cell.of_ist else BASELINE
    return {"color": colour, "marker": marker, "markerfacecolor": colour if filled else "white"}


def handles_of(rows: Sequence[Row]) -> list[Any]:
    """The legend."""
    from matplotlib.lines import Line2D

    def handle(label: str, **style: Any) -> Any:
        return Line2D([], [], linestyle="none", label=label, **{"color": "0.3", "marker": "o", **style})

    kinds = {kind_of_colour(row.cell): "o" if row.cell.of_ist else BASELINE for row in rows}
    shapes = sorted({shape_of(row.cell) for row in rows if row.cell.of_ist})
    shares = sorted({row.cell.moving for row in rows if row.cell.of_ist}, reverse=True)
    names = {
        "ist all": "ist, all units dealt",
        "ist late": "ist, late layers dealt",
        "ist other": "ist, named layers",
    }
    return [
        *(handle(names.get(kind, kind), color=colour_of(kind), marker=kinds[kind]) for kind in sorted(kinds)),
        *(handle(shape, marker=MARKERS.get(shape, "p")) for shape in shapes),
        *(
            handle(f"moving {share:g} ({words})", markerfacecolor=fill)
            for share in shares
            for words, fill in [("filled", "0.3") if share == 1 else ("hollow", "white")]
        ),
        *(handle(bandwidth_text(bits), markersize=size) for bits, size in zip(BANDWIDTHS, SIZES, strict=True)),
        *([Line2D([], [], label="range of seeds", **RANGE)] if any(len(row.finals) > 1 for row in rows) else []),
    ]


if __name__ == "__main__":
    main()
