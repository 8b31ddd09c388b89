"""A map of the methods: which one reaches a target first at each bandwidth and on each number of nodes.

The other axis may also be the latency between hosts, or an option of a method, such as `local_steps`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from istbench.base.errors import UserError, unknown_name
from istbench.base.options.options import option_text
from istbench.base.units import period_text
from istbench.cluster.profile import ClusterProfile, bandwidth_text
from istbench.report.answer import RowTime, main_target, row_times
from istbench.report.groups import Contender, RunGroup, Sweep
from istbench.report.palette import MethodStyle
from istbench.report.phrases import (
    ROUGH,
    ROUGH_LINE,
    Caution,
    Lead,
    count_nodes,
    counted_winners,
    fault_words,
    guide_line,
    interval_names,
    latency_line,
    network_line,
    off_words,
    replay_lines,
)
from istbench.report.plots.plot import contender_styles, plot_subtitle, plot_title
from istbench.report.report import replay_runs
from istbench.report.tables.comparison_footer import doubted_lines, seeds_line
from istbench.report.tables.group_columns import target_lines
from istbench.report.tables.table import Column, Entry, Table, grid_table
from istbench.report.targets import Target

if TYPE_CHECKING:
    from istbench.cluster.faults import Faults

_DIGITS = 3

Verdict = Literal["first", "close", "only", "nobody"]

NEVER_RUN = "*"
"""Marks a cell with a row that was never run on its number of nodes."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One cell of a map: the rows at one bandwidth, compared by their seconds to the target.

    verdict: `first` if one row is first; `close` if the range of the fastest row overlaps with others, as in
    `RowTime.overlaps`; `only` if a row reached the target and no other ran; `nobody` if no row reached the target
    with more than half of its seeds.
    rivals: number of other rows that ran, beside the fastest.
    leaders: names of the fastest row, and for `close` of all that overlap with it, the fastest first.
    method: of the fastest row. seconds: its median over seeds. over_next: seconds of the second row over those of
    the fastest, paired by seed; None if no other row reached the target with more than half of its seeds.
    rough: a time is interpolated from step 0. extrapolated: a row was never run on these nodes.
    row: value of the other axis. bandwidth: of a host's link, bits/s.
    """

    bandwidth: float
    row: int | float | str
    nodes: int
    verdict: Verdict
    rivals: int
    leaders: tuple[str, ...] = ()
    method: str | None = None
    seconds: float | None = None
    over_next: float | None = None
    rough: bool = False
    extrapolated: bool = False

    @property
    def winner(self) -> str | None:
        """The name of the first row; None if there is none."""
        return self.leaders[0] if self.verdict == "first" else None

    @property
    def heading(self) -> str:
        """`ist`, `ist or ddp`, `nobody`."""
        return " or ".join(self.leaders) or "nobody"

    @property
    def detail(self) -> str:
        """`1.84×`, `too close`, `others missed`, `no other ran`, with the marks; for `nobody` only marks."""
        words = {"close": "too close", "only": "no other ran", "nobody": ""}.get(self.verdict)
        if words is None:
            words = "others missed" if self.over_next is None else f"{_factor(self.over_next)}×"
        return f"{ROUGH if self.rough else ''}{words}{NEVER_RUN if self.extrapolated else ''}"

    @property
    def text(self) -> str:
        return f"{self.heading} {self.detail}".strip()


@dataclass(frozen=True, kw_only=True)
class WinnerMap:
    """The row that reaches `target` first, by bandwidth and one other axis. Every output draws from this.

    group: the runs at the lowest bandwidth, for the facts that hold for all. cluster: its name without a bandwidth.
    faults: with which all seconds are means; None without.
    by: the other axis: `nodes`, `latency` or the name of an option.
    columns, rows: names of the bandwidths and of the other axis' values, both rising. tiles: for each row, a tile
    for each bandwidth.
    styles: of each row of the tables by name.
    """

    group: RunGroup
    cluster: str
    by: str
    target: Target
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    tiles: tuple[tuple[Tile, ...], ...]
    styles: Mapping[str, MethodStyle]
    stem: str
    faults: "Faults | None" = None

    @property
    def cells(self) -> list[Tile]:
        return [tile for row in self.tiles for tile in row]

    @cached_property
    def shown(self) -> RunGroup:
        """`group` with the rows of the cells alone."""
        nodes = {tile.nodes for tile in self.cells}
        rows = tuple(row for row in self.group.competing if row.nodes in nodes)
        return dataclasses.replace(self.group, contenders=rows)

    @property
    def title(self) -> str:
        failing = "" if self.faults is None else f", a fault of each node every {period_text(self.faults.mtbf_s)}"
        return f"{plot_title(self.group)}: first to {self.target.of(self.group.metric)}{failing}"

    @property
    def answers(self) -> tuple[str, ...]:
        """The first rows with the number of their cells; and among whom, how sure, and replayed."""
        tiles = self.cells
        winners = [tile.leaders[0] for tile in tiles if tile.verdict in ("first", "only")]
        close, missed = (sum(tile.verdict == name for tile in tiles) for name in ("close", "nobody"))
        said = [counted_winners(winners, len(tiles))] if winners else []
        said += [f"{close} of {len(tiles)} too close to call"] if close else []
        said += [f"nobody in {missed}"] if missed else []
        several = any(row.seeds > 1 for row in self.shown.contenders)
        return (
            self.sentence
            or f"First to {self.target.of(self.group.metric)}{self.shown.of_rows}: {'; '.join(said)}.",
            f"Replayed on {self.cluster}, among {self.shown.among}"
            f"{'' if several else '; one seed each, so no spread is known'}.",
        )

    @property
    def subtitle(self) -> str:
        """The budget, the batch size, the cluster, the nodes, and the meaning of the figures."""
        kinds = interval_names(row.seeds for row in self.shown.contenders)
        ranges = (
            f"too close: ranges over seeds ({kinds}), widened by errors of replays, overlap"
            if kinds
            else "one seed; too close: a difference within the errors of replays"
        )
        nodes = "" if self.by == "nodes" else f", {count_nodes(self.tiles[0][0].nodes)}"
        known = plot_subtitle(self.group, ranges, self.cluster + nodes)
        return f"{known}; ×: seconds of the next over the first"

    @property
    def row_label(self) -> str:
        return "latency to another host" if self.by == "latency" else self.by

    @property
    def words(self) -> str:
        """One line: the contenders, the data, the clock, and how far replays are off."""
        failing = (
            "" if self.faults is None else f" Seconds are means of simulated faults: {fault_words(self.faults)}"
        )
        return (
            f"Among {self.shown.among}. Data: {self.group.source.seen}. Seconds: recorded on "
            f"{self.group.device}, replayed on {self.cluster}. {off_words(self.shown.times)}{failing}"
        )

    @property
    def sentence(self) -> str:
        """The whole map in a sentence, if one row is first in all of its cells; else empty."""
        tiles = self.cells
        winners = {tile.winner for tile in tiles}
        if len(winners) > 1 or None in winners or len(tiles) == 1:
            return ""
        leads = sorted(tile.over_next for tile in tiles if tile.over_next is not None)
        missed = "the others miss it" if len(leads) < len(tiles) else ""
        ends = " to ".join(dict.fromkeys(map(_factor, (leads[0], leads[-1])))) if leads else ""
        faster = f"{ends} times as fast as the next" if ends else ""
        either = " or ".join(filter(None, [faster, missed]))
        target = self.target.of(self.group.metric)
        across = f"{self.columns[0]} to {self.columns[-1]}"
        down = f"{', '.join(self.rows)} {self.row_label}"
        return f"{tiles[0].winner} is first to {target} in all {len(tiles)} cells, {across} and {down}: {either}."

    @property
    def extrapolated(self) -> bool:
        """Whether a tile has a row that was never run on its number of nodes."""
        return any(tile.extrapolated for tile in self.cells)

    def table(self) -> Table:
        """A row for each value of the other axis, and a column for each bandwidth."""
        rows = zip(self.rows, ([_entry(tile) for tile in row] for row in self.tiles), strict=True)
        first = Column(key=self.by, title=self.row_label)
        return grid_table(first, self.columns, rows, title=self.title, footer=tuple(_footer(self)))

    def records(self) -> list[dict[str, object]]:
        """A record for each tile, for programs: bandwidth (bits/s), nodes, winner, seconds, over_next and more."""
        return [
            {
                "bandwidth": tile.bandwidth,
                "nodes": tile.nodes,
                **({} if self.by == "nodes" else {"latency_s" if self.by == "latency" else self.by: tile.row}),
                "winner": tile.winner,
                "seconds": tile.seconds,
                "over_next": tile.over_next,
                "verdict": tile.verdict,
                "rivals": tile.rivals,
                "leaders": list(tile.leaders),
                "extrapolated": tile.extrapolated,
                "before_first_evaluation": tile.rough,
                "workload": self.group.workload_label,
                "data": self.group.data,
                "metric": self.group.metric.name,
                "target": self.target.level,
                "cluster": self.cluster,
                **({} if self.faults is None else dataclasses.asdict(self.faults)),
            }
            for tile in self.cells
        ]


def build_maps(
    results: Path,
    clusters: Mapping[str, Sequence[ClusterProfile]],
    *,
    by: str = "nodes",
    cluster: str,
    target: float | None = None,
    nodes: Sequence[int] = (),
    faults: "Faults | None" = None,
    **selected: Any,
) -> tuple[list[WinnerMap], tuple[str, ...]]:
    """A map of each group of comparable runs in `results`, and a line for each run that is left out.

    clusters: profiles of `cluster` by rising bandwidth; with `by` latency, several families by rising latency.
    by: the other axis, `nodes`, `latency` or the name of an option of a method.
    target: level of the metric; None for the hardest target that a row of the map reached.
    nodes: numbers of nodes to show, by default all that were run. The other axes take one number; by default the
    largest of those with the most rows.
    faults: with which all seconds are means.
    selected: the other arguments of `replay_runs`; `redeal` for numbers of nodes that were never run.

    Raises:
        UserError: as `replay_runs` does, for several `nodes` beside another axis, for an unknown option, and if no
            runs have a target.
    """
    if by != "nodes" and len(nodes) > 1:
        raise UserError(f"--nodes {','.join(map(str, nodes))}: a map by {by} has one number of nodes; name one")
    levels = () if target is None else (target,)
    replayed = replay_runs(results, clusters, levels=levels, nodes=nodes, faults=faults, **selected)
    count = len(replayed.sweeps) // len(clusters)
    families = [replayed.sweeps[place::count] for place in range(count)]
    if by not in ("nodes", "latency"):
        _check_option(by, families)
    maps = [one for family in families if (one := winner_map(family, by, cluster, nodes)) is not None]
    if not maps:
        raise UserError(
            f"no map of {results}: its runs have no target, or nothing to compare; --target names a level of the "
            "metric"
        )
    if faults is not None:
        named = f"-mtbf-{faults.mtbf_s:.0f}s"
        maps = [dataclasses.replace(one, faults=faults, stem=f"{one.stem}{named}") for one in maps]
    return maps, replayed.problems


def winner_map(
    family: Sequence[Sweep], by: str, cluster: str, nodes: Sequence[int] = (), target: Target | None = None
) -> WinnerMap | None:
    """The map of one group of runs; None without a target, or without rows on `nodes`.

    family: the group's sweeps over the bandwidths, one; with `by` latency, one for each latency.
    target: by default the hardest that a row of the map reached.
    """
    group = family[0].groups[0]
    shown = [count for count in nodes or group.nodes if _rivals(group, count)]
    if not shown:
        return None
    if by != "nodes":
        shown = [shown[0] if nodes else max(shown, key=lambda count: (len(_rivals(group, count)), count))]
    target = target or main_target(group, [row for count in shown for row in _rivals(group, count)])
    if target is None:
        return None
    if by == "nodes":
        lines = [_Line(count, str(count), count, family[0]) for count in shown]
    elif by == "latency":
        lines = [_Line(latency, f"{latency * 1e3:g} ms", shown[0], sweep) for latency, sweep in _latencies(family)]
    else:
        lines = [
            _Line(value, option_text(value), shown[0], family[0], _having(by, value))
            for value in _values(group, by, shown[0])
        ]
    if not lines:
        return None
    sweep = family[0]
    tiles = tuple(
        tuple(
            _tile(_rivals(there, line.nodes, line.keeps), target, bits, line)
            for bits, there in zip(line.sweep.bandwidths, line.sweep.groups, strict=True)
        )
        for line in lines
    )
    safe = "".join(character if character.isalnum() else "-" for character in f"{by}-to-{target.key}")
    return WinnerMap(
        group=group,
        cluster=cluster,
        by=by,
        target=target,
        columns=tuple(bandwidth_text(bits, _DIGITS) for bits in sweep.bandwidths),
        rows=tuple(line.label for line in lines),
        tiles=tiles,
        styles=contender_styles(group),
        stem=f"{sweep.stem}-map-by-{safe}",
    )


@dataclass(frozen=True)
class _Line:
    """A row of the map: its value and name, its nodes, the runs by bandwidth, and which contenders belong to it."""

    value: int | float | str
    label: str
    nodes: int
    sweep: Sweep
    keeps: Callable[[Contender], bool] = lambda _: True


def _rivals(group: RunGroup, nodes: int, keeps: Callable[[Contender], bool] = lambda _: True) -> list[Contender]:
    return [contender for contender in group.competing if contender.nodes == nodes and keeps(contender)]


def _latencies(family: Sequence[Sweep]) -> Iterable[tuple[float, Sweep]]:
    for sweep in family:
        profile = sweep.groups[0].profile
        assert profile is not None
        yield profile.latency_s, sweep


def _having(option: str, value: object) -> Callable[[Contender], bool]:
    """Whether a contender has `value` of the option, or has no such option."""
    return lambda contender: contender.settings.get(option, value) == value


def _values(group: RunGroup, option: str, nodes: int) -> list[int | float | str]:
    """The values of `option` among the rows on `nodes` nodes, rising."""
    found = {
        option_text(row.settings[option]): row.settings[option]
        for row in _rivals(group, nodes)
        if option in row.settings
    }
    numbers = all(isinstance(value, int | float) for value in found.values())
    return sorted(found.values(), key=None if numbers else option_text)


def _check_option(option: str, families: Sequence[Sequence[Sweep]]) -> None:
    groups = [family[0].groups[0] for family in families]
    known = {name for group in groups for row in group.contenders for name in row.settings}
    if option not in known:
        raise unknown_name("axis", option, {"nodes", "latency", *known}, "in --by")


def _tile(rivals: Sequence[Contender], target: Target, bandwidth: float, line: _Line) -> Tile:
    rows = row_times(rivals, target)
    there = [row for row in rows if math.isfinite(row.seconds.median)]
    nobody = Tile(
        bandwidth=bandwidth,
        row=line.value,
        nodes=line.nodes,
        rivals=len(rows) - 1,
        verdict="nobody",
        extrapolated=_never_run(rows),
    )
    if not there:
        return nobody
    first, *others = rows
    overlapping = [row for row in others if first.overlaps(row)]
    compared = [*there[:2], *overlapping]
    return dataclasses.replace(
        nobody,
        verdict="close" if overlapping else "first" if len(rows) > 1 else "only",
        leaders=(first.contender.name, *(row.contender.name for row in overlapping)),
        method=first.contender.method,
        seconds=first.seconds.median,
        over_next=there[1].over(first) if len(there) > 1 else None,
        rough=any(row.contender.from_start(target.level) for row in compared),
        extrapolated=_never_run(compared),
    )


def _never_run(rows: Iterable[RowTime]) -> bool:
    return any(row.contender.extrapolated_from is not None for row in rows)


def _factor(ratio: float) -> str:
    """Three significant digits, or all digits before the point; no digits where faults leave no progress."""
    if ratio >= 10_000:
        return ">9999"
    return f"{ratio:.0f}" if ratio >= 99.95 else f"{ratio:#.3g}"


def _entry(tile: Tile) -> Entry:
    value = {"winner": tile.winner, "seconds": tile.seconds, "over_next": tile.over_next}
    return Entry(text=tile.text, value=value)


def _footer(found: WinnerMap) -> Iterable[str]:
    group, shown, profile = found.group, found.shown, found.group.profile
    assert profile is not None
    if found.sentence:
        yield Lead(found.sentence)
    yield Lead(found.words)
    yield Lead(f"Runs: {found.subtitle}.")
    yield from (line for line in seeds_line(shown) if isinstance(line, Caution))
    if shown.unequal_trials:
        yield Caution(f"Tuned unequally. Trials: {shown.unequal_trials}. A lead may be the tuning.")
    if any(tile.rough for tile in found.cells):
        yield ROUGH_LINE
    if found.extrapolated:
        yield Caution(f"{NEVER_RUN}: extrapolated, a method of the cell was never run on so many nodes.")
    yield from replay_lines(shown.times, profile, group.device)
    if found.by == "latency":
        yield from latency_line(max(float(tile.row) for tile in found.cells))
    yield from doubted_lines(shown)
    yield from target_lines(group)
    yield from network_line(profile)
    yield guide_line("replays.md#maps")
