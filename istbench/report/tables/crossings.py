"""Which method overtakes which, at what bandwidth."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from istbench.cluster.profile import bandwidth_text
from istbench.config.defaults import BASELINE
from istbench.report.phrases import data_line
from istbench.report.sweep import Sweep
from istbench.report.tables.numbers import plain
from istbench.report.tables.of_group import group_context
from istbench.report.tables.table import ColumnOf, Entry, Table, fill
from istbench.report.targets import Target

_DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """A bandwidth, bits/s, below which method `below` is sooner at `target`, and above which `above` is."""

    below: str
    above: str
    nodes: int
    target: Target
    bandwidth: float

    @property
    def level(self) -> float:
        """The target's level of the metric."""
        return self.target.level


def crossings(sweep: Sweep) -> list[Crossing]:
    """Bandwidths at which two methods on as many nodes take equally long to a target, of their medians over seeds.

    Between the bandwidths replayed, times are interpolated as straight lines in logarithms.
    """
    found = []
    group = sweep.groups[0]
    for nodes, target in itertools.product(group.nodes, group.targets):
        labels = sweep.labels(nodes)
        times = {label: [at.median for at in sweep.times(label, nodes, target.level)] for label in labels}
        for one, other in itertools.combinations(times, 2):
            for bandwidth, sooner in _crossed(sweep.bandwidths, times[one], times[other]):
                below, above = (one, other) if sooner else (other, one)
                found.append(Crossing(below=below, above=above, nodes=nodes, target=target, bandwidth=bandwidth))
    return found


def crossings_table(sweep: Sweep, baseline: str = BASELINE) -> Table:
    """A row for each of `crossings`."""
    group = sweep.groups[0]
    low, high = (bandwidth_text(sweep.bandwidths[end], _DIGITS) for end in (0, -1))
    context = {**group_context(group, baseline), "host": sweep.cluster}
    columns, rows = fill(_columns(group.metric), crossings(sweep))
    return Table(
        title=f"{group.workload_label}: which method overtakes which on {sweep.cluster}, from {low} to {high}",
        columns=columns,
        rows=rows,
        empty=f"No method overtakes another between {low} and {high}.",
        footer=(
            data_line(group.source),
            "Medians over seeds; straight lines in logarithms between the bandwidths replayed, "
            f"{', '.join(bandwidth_text(bits, _DIGITS) for bits in sweep.bandwidths)}.",
        ),
        keys=0,
        context=context,
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


def _columns(metric: str) -> list[ColumnOf[Crossing]]:
    return [
        ColumnOf(key="crossing", title="crossing", align="left", entry=_sentence),
        ColumnOf(key="nodes", title="nodes", entry=lambda crossing: plain(crossing.nodes)),
        ColumnOf(
            key="level",
            title=f"to {metric}",
            entry=lambda crossing: Entry(text=crossing.target.text, value=crossing.level),
        ),
    ]


def _sentence(crossing: Crossing) -> Entry:
    at = bandwidth_text(crossing.bandwidth, _DIGITS)
    return Entry(
        text=f"{crossing.below} overtakes {crossing.above} below {at}",
        value={
            "ahead_below": crossing.below,
            "ahead_above": crossing.above,
            "bandwidth_bits_per_s": crossing.bandwidth,
        },
    )
