"""The study of `ist`'s options `deal`, `coverage` and `moving`, as one picture and a table.

    istbench compare configs/light/deal.toml --data DIR --out RESULTS
    python scripts/bench/dealing.py RESULTS results/dealing-cifar10
    python scripts/bench/dealing.py RESULTS TARGET --levels 0.6    # to try it

Final accuracy and replayed seconds to accuracies, against the bytes of a round and the arithmetic of a local step.
A round of every method has as many local steps as one of `ist`. Accuracies are those of the runs; seconds are
replayed on m5.2xlarge with other links. Writes README.md, cells.csv, and the picture. README.md says at which
bandwidths a form of `ist` is first, and how far each ends behind `local_sgd`.
"""

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from istbench.cluster.profile import bandwidth_text, select_clusters
from istbench.cluster.trace_file import load_trace
from istbench.report.output.figure import write_figure
from istbench.report.output.formats import table_markdown
from istbench.report.tables.numbers import plain, rounded
from istbench.report.tables.table import ColumnOf, Entry, Table, fill
from istbench.results.load import Run, load_runs
from istbench.results.on_cluster import runs_on_clusters
from istbench.results.stats import median

CLUSTER = "m5.2xlarge"
BANDWIDTHS = (1e8, 1e9, 1e10)
"""Of the table and the picture, bits/s."""
SWEEP = (1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9, 2e9, 5e9, 1e10)
"""Of the search for the first method."""
WANTED = {2: 0.01, 4: 0.03}
"""By nodes: how much less accuracy than `local_sgd` is enough, with fewer bytes and less arithmetic."""
COLOURS = {
    "ist all": "#D55E00",
    "ist late": "#882255",
    "ist other": "#999933",
    "local_sgd": "#009E73",
    "ddp": "#0072B2",
}
MARKERS = {
    "coverage 1": "o",
    "coverage 2": "s",
    "coverage 3": "v",
    "coverage 4": "D",
    "warm-up": "P",
    "widened": "X",
}
BASELINE = "*"
SIZES = (10, 7, 4.5)
"""Of markers, by bandwidth."""


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
        if not self.of_ist:
            return self.method
        options = {"coverage": 1, "moving": 1, "warmup_rounds": 0, "widen": 1}
        given = {name: getattr(self, name) for name, plain in options.items() if getattr(self, name) != plain}
        return " ".join([self.method, f"deal={self.deal}", *(f"{name}={value:g}" for name, value in given.items())])

    @property
    def of_ist(self) -> bool:
        """Whether the method deals units."""
        return self.method.endswith("ist")


class Row(NamedTuple):
    """Medians over the seeds of a cell. seconds: by level and bits/s, infinite for a miss."""

    cell: Cell
    finals: tuple[float, ...]
    megabytes: float
    operations: float | None
    step_ms: float
    seconds: dict[tuple[float, float], float]

    @property
    def final(self) -> float:
        return median(self.finals)


def main() -> None:
    """Write the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--levels", default="0.6,0.7", help="accuracies, separated by commas")
    arguments = parser.parse_args()
    runs = [run for run in load_runs(arguments.results)[0] if run.done and run.header.result is not None]
    if not runs:
        parser.error(f"no finished run in {arguments.results}")
    kinds = {(run.header.workload, run.header.budget, run.header.batch_size) for run in runs}
    if len(kinds) > 1:
        parser.error(f"runs of several kinds, which do not compare: {sorted(kinds)}; give each a directory")
    local_steps = {steps for run in runs if (steps := run.header.config.method_options.get("local_steps"))}
    if len(local_steps) != 1:
        parser.error(f"local steps of a round {sorted(local_steps)}: runs must have one number")
    (steps,) = local_steps
    levels = [float(level) for level in arguments.levels.split(",")]
    rows = compared(runs, levels, steps)
    arguments.target.mkdir(parents=True, exist_ok=True)
    write_csv(rows, levels, arguments.target / "cells.csv")
    of = f"{min(run.header.workload_label for run in runs)}, {runs[0].header.budget}"
    write_figure(lambda figure: draw(figure, rows, levels, of), arguments.target / "dealing")
    columns, entries = fill(columns_of(levels), rows)
    title = f"{of}: accuracy, bytes and arithmetic by the options of ist"
    table = Table(title=title, columns=columns, rows=entries, footer=tuple(footer(runs, steps)), keys=7)
    found = "\n".join(f"- {line}" for line in findings(rows, levels))
    text = f"{table_markdown(table)}\n### Findings\n\n{found}\n\n![dealing](dealing.png)\n"
    (arguments.target / "README.md").write_text(text)


def compared(runs: Sequence[Run], levels: Sequence[float], steps: int) -> list[Row]:
    """A row for each cell, in their order. steps: of a round."""
    profiles = select_clusters([CLUSTER], SWEEP)[CLUSTER]
    on_clusters, problems = runs_on_clusters(runs, profiles)
    if problems:
        raise SystemExit("\n".join(problems))
    seeds: dict[Cell, list[tuple[Run, Sequence[Run]]]] = defaultdict(list)
    for run, replayed in zip(runs, zip(*on_clusters, strict=True), strict=True):
        seeds[cell_of(run)].append((run, replayed))
    return [row_of(cell, found, levels, steps) for cell, found in sorted(seeds.items())]


def row_of(cell: Cell, found: Sequence[tuple[Run, Sequence[Run]]], levels: Sequence[float], steps: int) -> Row:
    """The row of a cell: each run, and its replays by bandwidth."""
    results = [run.header.result for run, _ in found]
    works = [load_trace(run.directory.trace).meta.work for run, _ in found]
    return Row(
        cell,
        tuple(sorted(run.curve.evaluations[-1].metrics[run.header.metric] for run, _ in found)),
        median([result.bytes_sent_per_node / result.steps * steps / 1e6 for result in results]),
        None if None in works else median([work.operations for work in works]),
        median([1e3 * result.train_s / result.steps for result in results]),
        {
            (level, bits): median(
                [there.seconds if (there := on[place].reached(level)) else math.inf for _, on in found]
            )
            for level in levels
            for place, bits in enumerate(SWEEP)
        },
    )


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

    def option(name: str, value: Any) -> ColumnOf[Row]:
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
        ColumnOf(key="final", title="final accuracy", entry=lambda row: plain(text_of(row.finals))),
        ColumnOf(key="megabytes", title="MB a round", entry=lambda row: rounded(row.megabytes)),
        ColumnOf(
            key="operations",
            title="GFLOP a step",
            entry=lambda row: plain("–") if row.operations is None else rounded(row.operations / 1e9),
        ),
        ColumnOf(key="step_ms", title="ms a step here", entry=lambda row: rounded(row.step_ms)),
        *(
            ColumnOf(
                key=f"to_{level:g}_{bandwidth_text(bits)}",
                title=f"s to {level:g}, {bandwidth_text(bits)}",
                entry=lambda row, key=(level, bits): rounded(row.seconds[key]),  # type: ignore[misc]
            )
            for level in levels
            for bits in BANDWIDTHS
        ),
    )


def text_of(finals: Sequence[float]) -> str:
    """The median, and the range of several seeds."""
    spread = f" [{finals[0]:.3f}–{finals[-1]:.3f}]" if len(finals) > 1 else ""
    return f"{median(finals):.3f}{spread}"


def footer(runs: Sequence[Run], steps: int) -> Iterable[str]:
    """The origin of the figures."""
    yield f"Data: {', '.join(sorted({run.header.data_source.seen for run in runs}))}."
    yield f"Seconds are replayed on {CLUSTER} with these links, not measured. ∞: missed within the budget."
    yield f"A round has {steps} local steps, that of ddp too. Bytes are those that the busiest node sends."
    yield "Arithmetic counts the matrix products of a local step."
    yield "Medians over seeds, with their range. ms a step: measured here, with exchanges, on shared cores."
    yield "A unit on every node (coverage = nodes) is local_sgd, bit for bit."
    yield "A replay takes the rounds of warmup_rounds for later ones, which compute and usually send less."


def findings(rows: Sequence[Row], levels: Sequence[float]) -> Iterator[str]:
    """Lines on what the rows of each number of nodes show."""
    for nodes, found in groupby(rows, key=lambda row: row.cell.nodes):
        own = list(found)
        baseline = next((row for row in own if row.cell.method == "local_sgd"), None)
        if baseline is not None:
            yield from gaps(own, baseline)
        for level in levels:
            yield f"{nodes} nodes, to {level:g}: {firsts(own, level)}."


def gaps(rows: Sequence[Row], baseline: Row) -> Iterator[str]:
    """How far the forms of `ist` end behind `baseline`, on as many nodes."""
    nodes = baseline.cell.nodes
    wanted = WANTED.get(nodes, min(WANTED.values()))
    ranked = sorted((row for row in rows if row.cell.of_ist), key=lambda row: -row.final)
    lighter = [row for row in ranked if row.cell.widen == 1 and is_lighter(row, baseline)]
    near = [row for row in lighter if baseline.final - row.final <= wanted]
    less = "with fewer bytes and less arithmetic than local_sgd"
    yield f"{nodes} nodes, at most {100 * wanted:g} points behind and {less}: {several(near, baseline)}."
    yield f"{nodes} nodes, the best two {less}: {several(lighter[:2], baseline)}."
    wide = [row for row in ranked if row.cell.widen > 1]
    if wide:
        yield f"{nodes} nodes, wider models: {several(wide, baseline)}."


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
    points = f"{100 * (row.final - baseline.final):+.1f} points"
    sent = f"{row.megabytes / baseline.megabytes:.2f} of the bytes"
    computed = "unknown arithmetic"
    if row.operations is not None and baseline.operations is not None:
        computed = f"{row.operations / baseline.operations:.2f} of the arithmetic"
    return f"`{row.cell.label}` {row.final:.3f} ({points}, {sent}, {computed})"


def firsts(rows: Sequence[Row], level: float) -> str:
    """The first row to `level` at each bandwidth of `SWEEP`, and its lead over the best row of the other kind."""
    leads = [(bits, *first_at(rows, level, bits)) for bits in SWEEP]
    if all(row is None for _, row, _ in leads):
        return "no run reaches it"
    parts = []
    for row, found in groupby(leads, key=lambda lead: lead[1]):
        span = list(found)
        low, high = (bandwidth_text(bits) for bits in (span[0][0], span[-1][0]))
        where = f"at {low}" if low == high else f"from {low} to {high}"
        assert row is not None  # an accuracy does not depend on the bandwidth
        parts.append(f"`{row.cell.label}` is first {where}{lead_of([ratio for _, _, ratio in span])}")
    nowhere = [] if any(row is not None and row.cell.of_ist for _, row, _ in leads) else ["`ist` at no bandwidth"]
    return "; ".join(parts + nowhere)


def lead_of(ratios: Sequence[float]) -> str:
    """The lead over the best method of another kind, in words."""
    if math.isinf(max(ratios)):
        return " (alone)"
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return f" ({low if low == high else f'{low} to {high}'} times as fast)"


def first_at(rows: Sequence[Row], level: float, bits: float) -> tuple[Row | None, float]:
    """The first row, and the seconds of the best row of another kind (`ist` or not) over its own."""
    there = sorted(
        (row for row in rows if math.isfinite(row.seconds[level, bits])), key=lambda row: row.seconds[level, bits]
    )
    if not there:
        return None, 1.0
    first = there[0]
    others = [row.seconds[level, bits] for row in there if row.cell.of_ist != first.cell.of_ist]
    return first, min(others, default=math.inf) / first.seconds[level, bits]


def write_csv(rows: Sequence[Row], levels: Sequence[float], path: Path) -> None:
    """A row for each cell."""
    keys = [(level, bits) for level in levels for bits in SWEEP]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [f"seconds to {level:g} at {bandwidth_text(bits)}" for level, bits in keys]
        writer.writerow([*Cell._fields, "finals", "megabytes", "operations", "step_ms", *names])
        for row in rows:
            numbers = [row.megabytes, row.operations, row.step_ms, *(row.seconds[key] for key in keys)]
            known = ["" if number is None or math.isinf(number) else f"{number:.6g}" for number in numbers]
            writer.writerow([*row.cell, " ".join(f"{final:.4f}" for final in row.finals), *known])


def draw(figure: Any, rows: Sequence[Row], levels: Sequence[float], of: str) -> None:
    """Panels: accuracy and seconds downwards; bytes and arithmetic across, for each number of nodes."""
    nodes = sorted({row.cell.nodes for row in rows})
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
                    plain_ticks(panel.xaxis)
                panel.grid(alpha=0.2)
                panel.spines[["top", "right"]].set_visible(False)
            for row in own:
                x = row.megabytes if side == 0 else row.operations and row.operations / 1e9
                draw_row(column, row, x, levels, tops)
    panels[0, 0].set_ylabel("final accuracy", fontsize="medium")
    for panel, level in zip(panels[1:, 0], levels, strict=True):
        panel.set_yscale("log")
        plain_ticks(panel.yaxis)
        panel.set_ylabel(f"replayed seconds to {level:g}", fontsize="medium")
        if math.isfinite(tops[level]):
            panel.set_ylim(top=tops[level])
    figure.legend(handles=handles_of(rows), loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    figure.suptitle(f"From IST to local SGD: {of}", fontweight="bold")


def top_of(rows: Sequence[Row], level: float) -> float:
    """The top of the axis of seconds to `level`: ddp on slow links lies above. Infinite without other rows."""
    shown = [row.seconds[level, bits] for row in rows if row.cell.method != "ddp" for bits in BANDWIDTHS]
    return 1.5 * max(filter(math.isfinite, shown), default=math.inf)


def plain_ticks(axis: Any) -> None:
    """Ticks 1, 2, 3, 5, 10, ... of a logarithmic `axis`, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
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
    if len(row.finals) > 1:
        column[0].plot([x, x], [row.finals[0], row.finals[-1]], color=style["color"], linewidth=1)
    for panel, level in zip(column[1:], levels, strict=True):
        seconds = [row.seconds[level, bits] for bits in BANDWIDTHS]
        reached = [(second, size) for second, size in zip(seconds, SIZES, strict=True) if math.isfinite(second)]
        panel.plot([x] * len(reached), [second for second, _ in reached], color=style["color"], linewidth=0.8)
        for second, size in reached:
            panel.plot([x], [second], linestyle="none", markersize=size, **style)
        if seconds[0] > tops[level] and math.isfinite(seconds[0]):
            panel.annotate(
                f"↑{seconds[0]:.0f}", (x, tops[level]), xytext=(-4, -2), textcoords="offset points", ha="right",
                va="top", fontsize="small", color=style["color"],
            )  # fmt: skip


def kind_of(cell: Cell) -> str:
    """The name of a colour."""
    if not cell.of_ist:
        return cell.method
    return f"ist {cell.deal}" if cell.deal in ("all", "late") else "ist other"


def shape_of(cell: Cell) -> str:
    """The name of a marker."""
    if cell.widen > 1:
        return "widened"
    return "warm-up" if cell.warmup_rounds else f"coverage {cell.coverage}"


def style_of(cell: Cell) -> dict[str, Any]:
    """Colour by what is dealt, filled if all units are dealt again in each round."""
    colour = COLOURS.get(kind_of(cell), "#4D4D4D")
    filled = cell.moving == 1
    marker = MARKERS.get(shape_of(cell), "p") if cell.of_ist else BASELINE
    return {"color": colour, "marker": marker, "markerfacecolor": colour if filled else "white"}


def handles_of(rows: Sequence[Row]) -> list[Any]:
    """The legend."""
    from matplotlib.lines import Line2D

    def handle(label: str, **style: Any) -> Any:
        return Line2D([], [], linestyle="none", label=label, **{"color": "0.3", "marker": "o", **style})

    kinds = sorted({kind_of(row.cell) for row in rows}, key=list(COLOURS).index)
    shapes = sorted({shape_of(row.cell) for row in rows if row.cell.of_ist})
    shares = sorted({row.cell.moving for row in rows if row.cell.of_ist}, reverse=True)
    names = {
        "ist all": "ist, all units dealt",
        "ist late": "ist, late layers dealt",
        "ist other": "ist, named layers",
    }
    return [
        *(
            handle(names.get(kind, kind), color=COLOURS[kind], marker="o" if kind in names else BASELINE)
            for kind in kinds
        ),
        *(handle(shape, marker=MARKERS.get(shape, "p")) for shape in shapes),
        *(handle(f"moving {share:g}", markerfacecolor="0.3" if share == 1 else "white") for share in shares),
        *(handle(bandwidth_text(bits), markersize=size) for bits, size in zip(BANDWIDTHS, SIZES, strict=True)),
    ]


if __name__ == "__main__":
    main()
