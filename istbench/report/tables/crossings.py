"""The bandwidths at which one method overtakes another."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from istbench.base.options.defaults import BASELINE
from istbench.cluster.profile import bandwidth_text
from istbench.report.groups import RunGroup, Sweep
from istbench.report.phrases import Lead, checks_line, data_line, guide_line
from istbench.report.tables.group_columns import group_context, target_lines
from istbench.report.tables.table import Entry, Table, column, table_of
from istbench.report.targets import Target

_DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Bandwidth in bits/s at which both methods reach `target` at the same time.

    Below it method `below` is faster, above it method `above`. If one method is faster at every bandwidth, it is
    both, and `bandwidth` is None. If no method reached the target or both take equally long, all three are None.

    Attributes:
        pair: both methods. reached: those of the two that reached the target.
    """

    pair: tuple[str, str]
    below: str | None
    above: str | None
    nodes: int
    target: Target
    bandwidth: float | None
    reached: tuple[str, ...]


def crossings(sweep: Sweep) -> list[Crossing]:
    """For each pair of methods on as many nodes, the bandwidths at which they cross, or else the faster method.

    They cross where their medians over seeds are equal. Times between the replayed bandwidths are interpolated
    linearly in logarithms. Controls are left out.
    """
    found: list[Crossing] = []
    group = sweep.groups[0]
    for nodes, target in itertools.product(group.nodes, group.targets):
        times = {
            row[0].label: [there.time(target.level).median for there in row]
            for row in sweep.rows(nodes)
            if not group.is_control(row[0])
        }
        for one, other in itertools.combinations(times, 2):
            reached = tuple(label for label in (one, other) if any(map(math.isfinite, times[label])))
            crossed: Sequence[tuple[float | None, bool | None]] = _crossed(
                sweep.bandwidths, times[one], times[other]
            )
            for bandwidth, sooner in crossed or [(None, _ahead(times[one], times[other]))]:
                below = None if sooner is None else one if sooner else other
                above = below if bandwidth is None else other if sooner else one
                found.append(
                    Crossing(
                        pair=(one, other), below=below, above=above, nodes=nodes, target=target,
                        bandwidth=bandwidth, reached=reached,
                    )
                )  # fmt: skip
    return found


def _ahead(one: Sequence[float], other: Sequence[float]) -> bool | None:
    """Whether `one` is faster, of two methods that never cross; None if neither is."""
    sooner = [mine < theirs for mine, theirs in zip(one, other, strict=True) if mine != theirs]
    return sooner[0] if sooner else None


def crossings_table(sweep: Sweep, baseline: str = BASELINE) -> Table:
    """A row for each of `crossings`, those at a bandwidth first."""
    group = sweep.groups[0]
    low, high = (bandwidth_text(sweep.bandwidths[end], _DIGITS) for end in (0, -1))
    replayed = [bandwidth_text(bits, _DIGITS) for bits in sweep.bandwidths]
    context = {**group_context(group, baseline), "host": sweep.cluster}
    return table_of(
        [
            column("crossing", "crossing", partial(_sentence, group), align="left"),
            column("nodes", "nodes", lambda crossing: crossing.nodes),
            column(
                "level",
                f"to {group.metric.title}",
                lambda crossing: Entry(text=crossing.target.text, value=crossing.target.level),
            ),
        ],
        sorted(crossings(sweep), key=lambda crossing: crossing.bandwidth is None),
        title=f"{group.workload_label}: bandwidths where methods cross on {sweep.cluster}, from {low} to {high}",
        empty=f"No two methods to compare between {low} and {high}.",
        footer=(
            data_line(group.source),
            Lead(f"Clock: seconds replayed at {', '.join(replayed)}."),
            *target_lines(group),
            *checks_line(group.times),
            guide_line("tables.md#crossings"),
        ),
        keys=0,
        context=context,
    )


def _crossed(bandwidths: Sequence[float], one: Sequence[float], other: Sequence[float]) -> list[tuple[float, bool]]:
    """Bandwidths at which the faster of two methods changes, and whether `one` is faster below."""
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


def _sentence(group: RunGroup, crossing: Crossing) -> Entry:
    one, other = crossing.pair
    return Entry(
        text=_words(group, crossing),
        value={
            "ahead_below": crossing.below,
            "ahead_above": crossing.above,
            "bandwidth_bits_per_s": crossing.bandwidth,
            "one": one,
            "other": other,
        },
    )


def _words(group: RunGroup, crossing: Crossing) -> str:
    one, other = map(group.name_of, crossing.pair)
    if crossing.below is None or crossing.above is None:
        return (
            f"{one} and {other} equal throughout" if crossing.reached else f"neither {one} nor {other} reached it"
        )
    ahead = group.name_of(crossing.below)
    if crossing.bandwidth is not None:
        at = bandwidth_text(crossing.bandwidth, _DIGITS)
        return f"{ahead} overtakes {group.name_of(crossing.above)} below {at}"
    behind = other if crossing.below == crossing.pair[0] else one
    missed = f": {behind} did not reach it" if len(crossing.reached) == 1 else ""
    return f"{ahead} ahead of {behind} throughout{missed}"
