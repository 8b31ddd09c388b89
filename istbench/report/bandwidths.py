"""The same runs on one cluster over links of several bandwidths: who is ahead where."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from istbench.cluster.profile import bandwidth_text
from istbench.config.defaults import BASELINE
from istbench.report.groups import Group
from istbench.report.palette import Look
from istbench.report.plots import Panel, Plot, Series, styles, time_words
from istbench.report.table import Cell, Column, Table, plain
from istbench.report.tables import group_context
from istbench.report.words import count_nodes, data_name
from istbench.results.stats import Estimate, estimate, interval_name

_PANELS = 2
# Of a tick, as a share of the axis.
_NAME_WIDTH = 0.3
_DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """cluster: its name without a bandwidth. groups: the same runs on each of its bandwidths, rising."""

    cluster: str
    groups: tuple[Group, ...]

    @property
    def bandwidths(self) -> tuple[float, ...]:
        """Of a node's link, bits/s."""
        return tuple(group.profile.bandwidth_out for group in self.groups if group.profile is not None)

    @property
    def stem(self) -> str:
        """A file name that no other sweep has."""
        first = self.groups[0]
        assert first.profile is not None
        one = dataclasses.replace(first, profile=dataclasses.replace(first.profile, name=self.cluster))
        return f"{one.stem}-by-bandwidth"

    def labels(self, nodes: int) -> list[str]:
        """The methods on so many nodes, in the order of the table."""
        return [entry.label for entry in self.groups[0].entries if entry.nodes == nodes]

    def times(self, label: str, nodes: int, level: float) -> list[Estimate]:
        """Seconds to `level` at each bandwidth."""
        return [
            estimate(list(entry.seconds(level).values()))
            for group in self.groups
            for entry in group.entries
            if (entry.label, entry.nodes) == (label, nodes)
        ]


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Below `bandwidth` (bits/s) `below` is sooner at `level`, above it `above` is."""

    below: str
    above: str
    nodes: int
    level: float
    bandwidth: float


def crossings(sweep: Sweep) -> list[Crossing]:
    """Where two methods on as many nodes take equally long to a target, of their medians over seeds.

    Between the bandwidths replayed, times are interpolated as straight lines in logarithms.
    """
    found = []
    group = sweep.groups[0]
    for nodes, level in itertools.product(group.nodes, group.levels):
        times = {label: [at.median for at in sweep.times(label, nodes, level)] for label in sweep.labels(nodes)}
        for one, other in itertools.combinations(times, 2):
            for bandwidth, sooner in _crossed(sweep.bandwidths, times[one], times[other]):
                below, above = (one, other) if sooner else (other, one)
                found.append(Crossing(below=below, above=above, nodes=nodes, level=level, bandwidth=bandwidth))
    return found


def crossings_table(sweep: Sweep, baseline: str = BASELINE) -> Table:
    """`crossings` in words, a row each."""
    group = sweep.groups[0]
    low, high = (bandwidth_text(sweep.bandwidths[end], _DIGITS) for end in (0, -1))
    context = {**group_context(group, baseline), "host": sweep.cluster}
    return Table(
        title=f"{group.workload_label}: which method overtakes which on {sweep.cluster}, from {low} to {high}",
        columns=(
            Column(key="crossing", title="crossing", align="left"),
            Column(key="nodes", title="nodes"),
            Column(key="level", title=f"to {group.metric}"),
        ),
        rows=tuple((_in_words(crossing), *_where(crossing)) for crossing in crossings(sweep)),
        empty=f"No method overtakes another between {low} and {high}.",
        footer=(
            "Medians over seeds; straight lines in logarithms between the bandwidths replayed, "
            f"{', '.join(bandwidth_text(bits, _DIGITS) for bits in sweep.bandwidths)}.",
        ),
        keys=0,
        context=context,
    )


def time_by_bandwidth(sweep: Sweep, nodes: int) -> Plot:
    """Seconds to the highest two targets that anything reached, by bandwidth in bits/s: a line for each method."""
    group = sweep.groups[0]
    looks_of = styles(group)
    labels = sweep.labels(nodes)
    reached = [
        level
        for level in group.levels
        if any(math.isfinite(at.median) for label in labels for at in sweep.times(label, nodes, level))
    ]
    panels = tuple(
        Panel(
            title=f"to {group.metric} {level:g}",
            series=tuple(_series(sweep, label, looks_of[label], nodes, level) for label in labels),
        )
        for level in (reached or list(group.levels))[-_PANELS:]
    )
    kinds = sorted({interval_name(len(e.runs)) for e in group.entries if e.nodes == nodes and len(e.runs) > 1})
    spread = f"median, bars: {' or '.join(kinds)}" if kinds else "one seed"
    places = _tick_places(sweep.bandwidths)
    return Plot(
        title=f"{group.workload_label}, {data_name(group.data)}, {count_nodes(nodes)}",
        subtitle=f"{group.budget}, batch size {group.batch_size} a node, on {sweep.cluster}; {spread}",
        kind="points",
        x_label="bandwidth of a node's link",
        y_label=f"{time_words(group)} to target (s)",
        panels=panels,
        x_scale="log",
        y_scale="log",
        ticks=tuple(bandwidth_text(bits, _DIGITS) for bits in places),
        tick_places=places,
    )


def _crossed(bandwidths: Sequence[float], one: Sequence[float], other: Sequence[float]) -> list[tuple[float, bool]]:
    """Bandwidths at which the sooner of two changes, and whether `one` is sooner below."""
    behind = [
        (math.log(bits), math.log(mine / theirs))
        for bits, mine, theirs in zip(bandwidths, one, other, strict=True)
        if math.isfinite(mine) and math.isfinite(theirs) and min(mine, theirs) > 0 and mine != theirs
    ]
    return [
        (math.exp(left + (right - left) * before / (before - after)), before < 0)
        for (left, before), (right, after) in itertools.pairwise(behind)
        if before * after < 0
    ]


def _in_words(crossing: Crossing) -> Cell:
    at = bandwidth_text(crossing.bandwidth, _DIGITS)
    return Cell(
        text=f"{crossing.below} overtakes {crossing.above} below {at}",
        value={
            "ahead_below": crossing.below,
            "ahead_above": crossing.above,
            "bandwidth_bits_per_s": crossing.bandwidth,
        },
    )


def _where(crossing: Crossing) -> tuple[Cell, Cell]:
    return plain(crossing.nodes), Cell(text=f"{crossing.level:g}", value=crossing.level)


def _series(sweep: Sweep, label: str, look: Look, nodes: int, level: float) -> Series:
    times = list(zip(sweep.bandwidths, sweep.times(label, nodes, level), strict=True))
    there = [(bits, at) for bits, at in times if 0 < at.median < math.inf]
    return Series(
        label=label,
        look=look,
        x=tuple(bits for bits, _ in there),
        y=tuple(at.median for _, at in there),
        low=tuple(max(at.low, at.median * 1e-3) for _, at in there),
        high=tuple(at.high for _, at in there),
        missed=tuple(bits for bits, at in times if math.isinf(at.median)),
    )


def _tick_places(bandwidths: Sequence[float]) -> tuple[float, ...]:
    """Powers of ten between the bandwidths where there are two, else bandwidths; not so near that names touch."""
    low, high = math.log10(bandwidths[0]), math.log10(bandwidths[-1])
    decades = [10.0**power for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]
    places: list[float] = []
    for bits in decades if len(decades) > 1 else bandwidths:
        if not places or math.log10(bits / places[-1]) >= _NAME_WIDTH * (high - low):
            places.append(bits)
    return tuple(places)
