"""A map of the methods as plain data: which row is first at each bandwidth, by one other axis."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from istbench.report.groups import Group
from istbench.report.palette import MethodStyle
from istbench.report.phrases import ROUGH, count_nodes, counted_winners, off_words
from istbench.report.plots.plot import plot_subtitle, plot_title
from istbench.report.targets import Target
from istbench.results.stats import interval_name

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
    the fastest, paired by seed; None if no other row reached the target.
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
        """All of it on one line."""
        return f"{self.heading} {self.detail}".strip()


@dataclass(frozen=True, kw_only=True)
class WinnerMap:
    """The row that reaches `target` first, by bandwidth and one other axis. Every output draws from this.

    group: the runs at the lowest bandwidth, for the facts that hold for all. cluster: its name without a bandwidth.
    by: the other axis: `nodes`, `latency` or the name of an option.
    columns, rows: names of the bandwidths and of the other axis' values, both rising. tiles: for each row, a tile
    for each bandwidth.
    styles: of each row of the tables by name.
    """

    group: Group
    cluster: str
    by: str
    target: Target
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    tiles: tuple[tuple[Tile, ...], ...]
    styles: Mapping[str, MethodStyle]
    stem: str

    @property
    def title(self) -> str:
        """The data, and the target."""
        return f"{plot_title(self.group)}: first to {self.target.of(self.group.metric)}"

    @property
    def answers(self) -> tuple[str, ...]:
        """The first rows with the number of their cells; and among whom, how sure, and replayed."""
        tiles = [tile for row in self.tiles for tile in row]
        winners = [tile.leaders[0] for tile in tiles if tile.verdict in ("first", "only")]
        close, missed = (sum(tile.verdict == name for tile in tiles) for name in ("close", "nobody"))
        said = [counted_winners(winners, len(tiles))] if winners else []
        said += [f"{close} of {len(tiles)} too close to call"] if close else []
        said += [f"nobody in {missed}"] if missed else []
        several = any(row.seeds > 1 for row in self.group.contenders)
        return (
            self.sentence
            or f"First to {self.target.of(self.group.metric)}{self.group.of_rows}: {'; '.join(said)}.",
            f"Replayed on {self.cluster}, among {self.group.among}"
            f"{'' if several else '; one seed each, so no spread is known'}.",
        )

    @property
    def subtitle(self) -> str:
        """The budget, the batch size, the cluster, the nodes, and the meaning of the figures."""
        kinds = {interval_name(row.seeds) for row in self.group.contenders if row.seeds > 1}
        ranges = (
            f"too close: ranges over seeds ({' or '.join(sorted(kinds))}), widened by errors of replays, overlap"
            if kinds
            else "one seed; too close: a difference within the errors of replays"
        )
        nodes = "" if self.by == "nodes" else f", {count_nodes(self.tiles[0][0].nodes)}"
        known = plot_subtitle(self.group, ranges, self.cluster + nodes)
        return f"{known}; ×: seconds of the next over the first"

    @property
    def row_label(self) -> str:
        """The name of the other axis."""
        return "latency to another host" if self.by == "latency" else self.by

    @property
    def words(self) -> str:
        """One line: the contenders, the data, the clock, and how far replays are off."""
        return (
            f"Among {self.group.among}. Data: {self.group.source.seen}. Seconds: recorded on "
            f"{self.group.device}, replayed on {self.cluster}. {off_words(self.group.times)}"
        )

    @property
    def sentence(self) -> str:
        """The whole map in a sentence, if one row is first in all of its cells; else empty."""
        tiles = [tile for row in self.tiles for tile in row]
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
        return any(tile.extrapolated for row in self.tiles for tile in row)

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
            }
            for row in self.tiles
            for tile in row
        ]


def _factor(ratio: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{ratio:.0f}" if ratio >= 99.95 else f"{ratio:#.3g}"
