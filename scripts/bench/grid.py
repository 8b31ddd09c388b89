"""Seconds to a level of the metric by method, local steps, bandwidth and latency: replays of one suite.

    istbench compare configs/light/grid.toml --data input.txt --out RESULTS     # about 40 minutes on two cores
    python scripts/bench/grid.py RESULTS results/grid
    python scripts/bench/grid.py RESULTS TARGET --latency 1ms,30ms              # to try it

Every finished run in RESULTS is replayed with each bandwidth and latency. A diverged run counts as a miss. The
level is the best one that all runs reach, unless `--level` gives another. Writes README.md, grid.csv, one
picture, and evaluations.csv: the curve of every run, with its seconds on every link. README.md ends with lab.md
(`grid_lab.py`) and utilisation.md (`utilisation.py`), where the directory has them.
"""

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cells import cautions_of, counted_runs, with_ends

from istbench.base.csv_text import csv_text
from istbench.base.errors import UserError
from istbench.base.options.options import option_text
from istbench.base.units import parse_bandwidth, parse_time
from istbench.cluster.profile import bandwidth_text, select_clusters
from istbench.report.answer import ranges_overlap, replay_error
from istbench.report.output.figure import write_figure
from istbench.report.output.formats import table_markdown
from istbench.report.palette import method_styles
from istbench.report.phrases import ROUGH, ROUGH_LINE
from istbench.report.tables.numbers import number, with_interval
from istbench.report.tables.table import ColumnOf, Entry, Table, plain, table_of
from istbench.results.frame import write_evaluations
from istbench.results.load import Run
from istbench.results.on_cluster import runs_on_clusters
from istbench.results.stats import SeedMedian, median, seed_median

EVERY = ("local_steps", "accumulate")
"""Options that give the local steps between two exchanges."""
ALONE = ", one node"
BESIDE = ("lab.md", "utilisation.md")
"""Texts of other programs for the end of README.md."""
ENTRIES = (
    "Entries: median over seeds [min–max]. A seed that missed the level counts as infinite (∞). A row of one node "
    "is a control: the method without its messages, on a share of the samples. The picture leaves it out."
)
TOO_CLOSE = (
    "Too close: the ranges overlap, each widened by the error of its method's replays in a lab, where known."
)
_BEYOND = 2.0
"""The end of an error bar over a seed that missed, as a multiple of the median."""
_MOST_CLOSE = 3
_APART = 1.07
"""Points of one number of local steps stand this factor apart, so that none hides another."""
Link = tuple[float, float]
"""Latency in seconds and bandwidth in bit/s."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method that exchanges after every `every` local steps. line: its name, with its nodes if it is a control.

    steps, megabytes: local steps until the level, and MB that the busiest node sends until then, by seed. finals:
    last values of the metric. seconds, computing: seconds until the level by seed, and the median share of the
    seconds in which a node computes, by link. error: the largest one of its method's replays in a lab, as a share;
    0 if unknown.
    """

    method: str
    line: str
    every: int
    steps: SeedMedian
    megabytes: SeedMedian
    finals: SeedMedian
    seconds: Mapping[Link, SeedMedian]
    computing: Mapping[Link, float]
    error: float
    rough: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--cluster", default="m5.2xlarge", help="its nodes compute")
    parser.add_argument("--bandwidth", default="50mbit,200mbit,1gbit,5gbit", help="separated by commas")
    parser.add_argument("--latency", default="1ms,30ms", help="one way, separated by commas")
    parser.add_argument("--level", type=float, help="of the metric; default: the best one that all runs reach")
    parser.add_argument("--trials", type=Path, help="results of configs/light/grid-rates.toml, for their table")
    arguments = parser.parse_args()
    try:
        bandwidths = [parse_bandwidth(text) for text in arguments.bandwidth.split(",")]
        latencies = [parse_time(text, "--latency") for text in arguments.latency.split(",")]
        families = select_clusters([arguments.cluster], bandwidths, latencies)
        runs, diverged = counted_runs(arguments.results)
        tried = [run for part in counted_runs(arguments.trials) for run in part] if arguments.trials else []
    except UserError as error:
        parser.error(str(error))
    groups = {(run.header.workload_label, run.header.budget) for run in [*runs, *diverged]}
    if len(groups) != 1 or len({run.header.nodes for run in runs} - {1}) != 1:
        parser.error(f"{arguments.results} must have finished runs of one workload, budget and number of nodes")
    level = common_level(runs) if arguments.level is None else arguments.level
    profiles = [profile for family in families.values() for profile in family]
    on_clusters, problems = runs_on_clusters(runs, profiles)
    if problems:
        parser.error("\n".join(problems))
    cells = cells_of(runs, diverged, on_clusters, level)
    arguments.target.mkdir(parents=True, exist_ok=True)
    links = sorted(next(iter(cells)).seconds)
    picture = Picture(cells, links, runs, level, arguments.cluster)
    (drawn, _) = write_figure(picture.draw, arguments.target / "seconds")
    write_csv(cells, arguments.target / "grid.csv")
    write_evaluations(arguments.results, arguments.target / "evaluations.csv", profiles)
    cautions = cautions_of(on_clusters)
    found = tables_of(cells, links, runs, cautions, level, arguments.cluster)
    tables = "\n".join(map(table_markdown, [*found, *([trials_table(tried)] if tried else [])]))
    title = (
        f"# The grid: seconds to {runs[0].curve.metric.name} {level:g}\n\n![seconds to {level:g}]({drawn.name})\n"
    )
    beside = [path.read_text() for name in BESIDE if (path := arguments.target / name).exists()]
    (arguments.target / "README.md").write_text("\n".join([title, tables, *beside]))


def common_level(runs: Sequence[Run]) -> float:
    """The best level that every run reaches, rounded to two digits after the point so that all still do."""
    metric = runs[0].curve.metric
    worst = metric.easiest_first(best for run in runs if (best := run.curve.best()) is not None)[0]
    return (math.ceil if metric.lower_is_better else math.floor)(worst * 100) / 100


def cells_of(
    runs: Sequence[Run], diverged: Sequence[Run], on_clusters: Sequence[Sequence[Run]], level: float
) -> list[Cell]:
    """The cells of `runs`, by method and then by local steps.

    diverged: each is a miss of its cell. on_clusters: `runs` on each link.
    """
    places = places_of([*runs, *diverged])
    missed = Counter(places[len(runs) :])
    seeds: dict[tuple[str, str, int], list[tuple[Run, Sequence[Run]]]] = defaultdict(list)
    for place, run, replayed in zip(places, runs, zip(*on_clusters, strict=True), strict=False):
        seeds[place].append((run, replayed))
    if lost := missed.keys() - seeds.keys():
        raise SystemExit(f"every run of {', '.join(line for _, line, _ in lost)} diverged; leave the row out")
    links = [link_of(there[0]) for there in on_clusters]
    found = []
    for (method, line, every), members in sorted(seeds.items()):
        misses = [math.inf] * missed[method, line, every]
        labels = sorted({run.header.method_label for run, _ in members})
        if len(labels) > 1:
            raise SystemExit(f"{' and '.join(labels)} have one place in the grid; leave one of them out")
        found.append(
            Cell(
                method=method,
                line=line,
                every=every,
                steps=seed_median([steps_to(run, level) for run, _ in members] + misses),
                megabytes=seed_median([megabytes_to(run, level) for run, _ in members] + misses),
                finals=seed_median([final_of(run) for run, _ in members] + misses),
                error=replay_error(there[0] for _, there in members),
                rough=any(there.from_start for run, _ in members if (there := run.reached(level)) is not None),
                seconds={
                    link: seed_median([seconds_to(there[number], level) for _, there in members] + misses)
                    for number, link in enumerate(links)
                },
                computing={
                    link: median([computing_in(there[number]) for _, there in members])
                    for number, link in enumerate(links)
                },
            )
        )
    return found


def places_of(runs: Sequence[Run]) -> list[tuple[str, str, int]]:
    """Of each run the method, its name, and its local steps between two exchanges.

    The name has the options that tell two cells of the method with as many local steps apart.
    """
    options = [dict(run.header.config.method_options) for run in runs]
    every = [{name: int(own.pop(name)) for name in EVERY if name in own} for own in options]
    bare = [
        f"{run.header.method} accumulate" if own.get("accumulate", 1) > 1 else run.header.method
        for run, own in zip(runs, every, strict=True)
    ]
    together: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    steps = [math.prod(own.values()) for own in every]
    for name, count, own in zip(bare, steps, options, strict=True):
        together[name, count].append(own)
    telling: dict[str, set[str]] = defaultdict(set)
    for (name, _), members in together.items():
        known = {option for own in members for option in own}
        telling[name] |= {
            option for option in known if any(own.get(option) != members[0].get(option) for own in members)
        }
    lines = [
        " ".join(
            [name, *(f"{option}={option_text(own[option])}" for option in sorted(telling[name]) if option in own)]
        )
        for name, own in zip(bare, options, strict=True)
    ]
    return [
        (run.header.method, line if run.header.nodes > 1 else f"{line}{ALONE}", count)
        for run, line, count in zip(runs, lines, steps, strict=True)
    ]


def link_of(run: Run) -> Link:
    """The latency and bandwidth of a replayed run."""
    assert run.cluster is not None
    return run.cluster.profile.latency_s, run.cluster.profile.bandwidth_out


def nodes_of(runs: Sequence[Run]) -> int:
    """The nodes of all runs but the controls."""
    return max(run.header.nodes for run in runs)


def final_of(run: Run) -> float:
    """The last value of the metric, infinite where there is none."""
    final = run.curve.final()
    return math.inf if final is None else final


def steps_to(run: Run, level: float) -> float:
    """Local steps until `level`, infinite for a miss."""
    reached = run.reached(level)
    return math.inf if reached is None else reached.step


def seconds_to(run: Run, level: float) -> float:
    """Seconds until `level` on the clock of `run`, infinite for a miss."""
    reached = run.reached(level)
    return math.inf if reached is None else reached.seconds


def megabytes_to(run: Run, level: float) -> float:
    """MB that the busiest node sends until `level`, interpolated between evaluations; infinite for a miss."""
    reached = run.reached(level)
    if reached is None:
        return math.inf
    steps = [evaluation.step for evaluation in run.curve.evaluations]
    sent = [evaluation.bytes_sent_per_node for evaluation in run.curve.evaluations]
    return float(np.interp(reached.step, steps, sent)) / 1e6


def computing_in(run: Run) -> float:
    """The share of the seconds of a replayed run in which a node computes, mean over nodes."""
    assert run.cluster is not None
    return run.cluster.compute


def tables_of(
    cells: Sequence[Cell],
    links: Sequence[Link],
    runs: Sequence[Run],
    cautions: Sequence[str],
    level: float,
    cluster: str,
) -> list[Table]:
    """The fastest cells, the training, the seconds and the shares of computing."""
    metric, head = runs[0].curve.metric, runs[0].header
    to = f"to {metric.name} {level:g}"
    where = f"{head.workload_label}, {nodes_of(runs)} nodes"
    seeds = sorted({run.header.seed for run in runs})
    footer = (
        f"Data: {head.data_source.seen}. Budget: {head.budget}, batch size {head.batch_size} a node, seeds "
        f"{', '.join(map(str, seeds))}. {tuning_words(runs)}",
        f"Clock: cluster_s, replayed on {cluster} with these links; nothing is measured on them. Lower is sooner.",
        ENTRIES,
        *([ROUGH_LINE] if any(cell.rough for cell in cells) else []),
        *cautions,
    )
    on_all = [cell for cell in cells if not cell.line.endswith(ALONE)]
    return [
        table(f"{where}: first {to}", first_columns(on_all), links, (*footer, TOO_CLOSE)),
        table(f"{where}: training {to}", training_columns(metric.title), cells, (ENTRIES,)),
        table(f"{where}: seconds {to}", NAMING + by_link(links, seconds_entry), cells, footer),
        table(
            f"{where}: share of the seconds that computes, %",
            NAMING + by_link(links, computing_entry),
            cells,
            ("Mean over nodes, median over seeds, over the whole run.", *cautions),
        ),
    ]


def trials_table(runs: Sequence[Run]) -> Table:
    """The trials of each row of the grid, the best first. runs: those that finished, and those that diverged."""
    together: dict[tuple[str, int], list[Run]] = defaultdict(list)
    nodes = max((run.header.nodes for run in runs), default=0)
    for run in runs:
        if run.header.nodes < nodes:  # a control
            continue
        options = run.header.config.method_options
        every = math.prod(int(options.get(name, 1)) for name in EVERY)
        together[f"{run.header.method}{' accumulate' if 'accumulate' in options else ''}", every].append(run)

    def words(members: Sequence[Run]) -> Entry:
        known = {name for run in members for name in run.header.config.method_options}
        own = [{name: run.header.config.method_options.get(name) for name in known} for run in members]
        varied = [name for name in sorted(own[0]) if len({options[name] for options in own}) > 1]
        sign = 1 if members[0].curve.metric.lower_is_better else -1
        tried = sorted((sign * final_of(run) if run.done else math.inf, place) for place, run in enumerate(members))
        return plain(
            "; ".join(
                f"{' '.join(f'{name}={option_text(own[place][name])}' for name in varied)}: {number(sign * final)}"
                for final, place in tried
            )
        )

    columns: list[ColumnOf[tuple[tuple[str, int], list[Run]]]] = [
        ColumnOf(key="method", title="method", align="left", entry=lambda row: row[0][0]),
        ColumnOf(key="every", title="local steps between exchanges", entry=lambda row: row[0][1]),
        ColumnOf(key="trials", title="trials, the best first", align="left", entry=lambda row: words(row[1])),
    ]
    head = runs[0].header
    footer = (f"One seed, {head.budget}: the final {head.metric} on data held out of the training split.",)
    return table(f"{head.workload_label}: trials of the rates", columns, sorted(together.items()), footer)


def tuning_words(runs: Sequence[Run]) -> str:
    """How the options of the rows on several nodes were chosen."""
    trials = {run.header.config.tuned or 0 for run in runs if run.header.nodes > 1}
    if trials == {0}:
        return "Tuning: none."
    if len(trials) == 1:
        return f"Tuned: {trials.pop()} trials for each row, by held-out data."
    return f"Tuned unequally: {min(trials)} to {max(trials)} trials for a row."


def table(title: str, columns: Iterable[ColumnOf[Any]], rows: Sequence[Any], footer: tuple[str, ...]) -> Table:
    return table_of(columns, rows, title=title, footer=footer, keys=2)


NAMING: list[ColumnOf[Cell]] = [
    ColumnOf(key="method", title="method", align="left", entry=lambda cell: cell.line),
    ColumnOf(key="every", title="local steps between exchanges", entry=lambda cell: cell.every),
]


def training_columns(metric: str) -> list[ColumnOf[Cell]]:
    """The columns that no link changes."""
    return [
        *NAMING,
        ColumnOf(key="reached", title="seeds", entry=lambda cell: f"{cell.steps.reached}/{cell.steps.seeds}"),
        ColumnOf(key="steps", title="local steps to it", entry=lambda cell: spread(cell.steps)),
        ColumnOf(key="megabytes", title="MB sent a node to it", entry=lambda cell: spread(cell.megabytes)),
        ColumnOf(key="final", title=f"final {metric}", entry=lambda cell: spread(cell.finals)),
    ]


def first_columns(cells: Sequence[Cell]) -> list[ColumnOf[Link]]:
    """The columns of a link: its fastest cell beside the `ddp` that averages every gradient."""
    every_step = next((cell for cell in cells if (cell.line, cell.every) == ("ddp", 1)), None)

    def fastest(link: Link) -> Cell:
        return min(cells, key=lambda cell: cell.seconds[link].median)

    def close(link: Link) -> Entry:
        first = fastest(link)
        others = [
            cell
            for cell in cells
            if cell is not first
            and ranges_overlap(first.seconds[link], first.error, cell.seconds[link], cell.error)
        ]
        others.sort(key=lambda cell: cell.seconds[link].median)
        more = f" and {len(others) - _MOST_CLOSE} more" if len(others) > _MOST_CLOSE else ""
        return plain("; ".join(map(place_words, others[:_MOST_CLOSE])) + more or "–")

    def gain(link: Link) -> Entry:
        assert every_step is not None
        ratio = every_step.seconds[link].median / fastest(link).seconds[link].median
        return Entry(text=f"{number(ratio)}×" if math.isfinite(ratio) else "∞", value=ratio)

    columns: list[ColumnOf[Link]] = [
        ColumnOf(key="latency_ms", title="latency", align="left", entry=lambda link: f"{link[0] * 1e3:g} ms"),
        ColumnOf(key="bandwidth", title="bandwidth", entry=lambda link: bandwidth_text(link[1])),
        ColumnOf(key="first", title="first", align="left", entry=lambda link: place_words(fastest(link))),
        ColumnOf(key="seconds", title="seconds", entry=lambda link: spread(fastest(link).seconds[link])),
        ColumnOf(key="close", title="too close to tell from it", align="left", entry=close),
    ]
    if every_step is not None:
        columns += [
            ColumnOf(key="ddp_s", title="ddp seconds", entry=lambda link: spread(every_step.seconds[link])),
            ColumnOf(key="gain", title="over ddp", entry=gain),
        ]
    return columns


def place_words(cell: Cell) -> str:
    """The method of `cell` and its local steps between exchanges."""
    return cell.line if cell.every == 1 else f"{cell.line}, every {cell.every}"


def by_link(links: Sequence[Link], entry: Callable[[Cell, Link], Entry]) -> list[ColumnOf[Cell]]:
    """A column for each link."""
    return [
        ColumnOf(
            key=f"{latency * 1e3:g}ms_{bandwidth:g}",
            title=f"{latency * 1e3:g} ms, {bandwidth_text(bandwidth)}",
            entry=lambda cell, link=(latency, bandwidth): entry(cell, link),  # type: ignore[misc]
        )
        for latency, bandwidth in links
    ]


def seconds_entry(cell: Cell, link: Link) -> Entry:
    """Seconds until the level, marked if no evaluation lies before it."""
    entry = spread(cell.seconds[link])
    return Entry(text=ROUGH + entry.text, value=entry.value) if cell.rough else entry


def computing_entry(cell: Cell, link: Link) -> Entry:
    """The share that computes, in percent."""
    return Entry(text=f"{100 * cell.computing[link]:.1f}", value=cell.computing[link])


def spread(values: SeedMedian) -> Entry:
    """The median and the range."""
    return Entry(text=with_interval(values, number), value=values.median)


def write_csv(cells: Sequence[Cell], path: Path) -> None:
    """A row for each cell and link. A miss is empty."""
    rows = [
        {
            "method": cell.line, "every": cell.every, "latency_s": link[0], "mbit_per_s": link[1] / 1e6,
            "seeds": seconds.seeds, "reached": seconds.reached, "final": f"{cell.finals.median:.6g}",
            "computing": cell.computing[link], **with_ends("steps", cell.steps),
            **with_ends("megabytes", cell.megabytes), **with_ends("seconds", seconds),
        }
        for cell in cells
        for link, seconds in sorted(cell.seconds.items())
    ]  # fmt: skip
    path.write_text(csv_text(rows, ".6g"))


@dataclass(frozen=True)
class Picture:
    """Seconds to the level by local steps: a row of panels for each latency, a column for each bandwidth."""

    cells: Sequence[Cell]
    links: Sequence[Link]
    runs: Sequence[Run]
    level: float
    cluster: str

    def draw(self, figure: Any) -> None:
        from matplotlib.ticker import LogLocator

        latencies, bandwidths = (sorted({link[part] for link in self.links}) for part in (0, 1))
        figure.set_size_inches(1.5 + 2.9 * len(bandwidths), 1.9 + 2.9 * len(latencies))
        panels = figure.subplots(len(latencies), len(bandwidths), sharex=True, sharey=True, squeeze=False)
        shown = [cell for cell in self.cells if not cell.line.endswith(ALONE)]
        ticks = sorted({cell.every for cell in shown})
        for row, latency in zip(panels, latencies, strict=True):
            for panel, bandwidth in zip(row, bandwidths, strict=True):
                panel.set_title(f"{bandwidth_text(bandwidth)}, {latency * 1e3:g} ms", fontsize="medium")
                panel.set_xscale("log")
                panel.set_yscale("log")
                panel.set_xticks(ticks, [str(tick) for tick in ticks])
                panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                panel.yaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
                panel.minorticks_off()
                panel.grid(alpha=0.2)
                panel.spines[["top", "right"]].set_visible(False)
                draw_lines(panel, shown, (latency, bandwidth))
        metric, head = self.runs[0].curve.metric, self.runs[0].header
        for panel in panels[-1]:
            panel.set_xlabel("local steps between exchanges", fontsize="medium")
        figure.supylabel(f"seconds to {metric.name} {self.level:g}", fontsize="medium")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(
            f"{head.workload_label}, {nodes_of(self.runs)} nodes, {head.budget}, replayed on {self.cluster}\n"
            "median over seeds, bars: min–max, twice the median where a seed missed; crosses at the top: missed",
            fontsize="medium",
        )


def draw_lines(panel: Any, cells: Sequence[Cell], link: Link) -> None:
    """A line for each method. A method with one point has a dotted line across, as a reference."""
    lines = list(dict.fromkeys((cell.method, cell.line) for cell in cells))
    styles = method_styles(lines)
    ends = [min(cell.every for cell in cells), max(cell.every for cell in cells)]
    for place, (_, line) in enumerate(lines):
        style = styles[line]
        apart = _APART ** (place - (len(lines) - 1) / 2)
        own = [cell for cell in cells if cell.line == line]
        there = [cell for cell in own if math.isfinite(cell.seconds[link].median)]
        times = [cell.seconds[link] for cell in there]
        below = [time.median - time.low for time in times]
        above = [(time.high if math.isfinite(time.high) else _BEYOND * time.median) - time.median for time in times]
        panel.errorbar(
            [cell.every * apart for cell in there], [time.median for time in times], yerr=[below, above],
            color=style.colour, linestyle=style.line, marker=style.marker, markersize=8, linewidth=1.6,
            elinewidth=1.6, markeredgecolor="white", markeredgewidth=0.8, label=line,
        )  # fmt: skip
        if len(own) == 1 and there:
            panel.plot(ends, [times[0].median] * 2, color=style.colour, linewidth=1, linestyle=":")
        if missed := [cell.every for cell in own if cell not in there]:
            panel.plot(
                [every * apart for every in missed], [1 - 0.03 * place] * len(missed),
                transform=panel.get_xaxis_transform(), color=style.colour, marker="x",
                linestyle="none", clip_on=False,
            )  # fmt: skip


if __name__ == "__main__":
    main()
