"""A map of the methods: which one reaches a target first at each bandwidth and on each number of nodes.

The other axis may also be the latency between hosts, or an option of a method, such as `local_steps`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from istbench.base.errors import UserError, unknown_name
from istbench.base.options.options import option_text
from istbench.cluster.profile import ClusterProfile, bandwidth_text
from istbench.report.groups import Contender, Group, Sweep
from istbench.report.plots.plot import contender_styles
from istbench.report.plots.winner_map import Tile, WinnerMap
from istbench.report.report import replay_runs
from istbench.report.row_time import RowTime, row_time
from istbench.report.targets import Target
from istbench.results.stats import speed_up

_DIGITS = 3


def build_maps(
    results: Path,
    clusters: Mapping[str, Sequence[ClusterProfile]],
    *,
    by: str = "nodes",
    cluster: str,
    target: float | None = None,
    nodes: Sequence[int] = (),
    **selected: Any,
) -> tuple[list[WinnerMap], tuple[str, ...]]:
    """A map of each group of comparable runs in `results`, and a line for each run that is left out.

    clusters: profiles of `cluster` by rising bandwidth; with `by` latency, several families by rising latency.
    by: the other axis, `nodes`, `latency` or the name of an option of a method.
    target: level of the metric; None for the hardest target that a row reached.
    nodes: numbers of nodes to show, by default all that were run. The other axes take one number; by default the
    largest of those with the most rows.
    selected: the other arguments of `replay_runs`; `redeal` for numbers of nodes that were never run.

    Raises:
        UserError: as `replay_runs` does, for an unknown option, and if no runs have a target.
    """
    levels = () if target is None else (target,)
    replayed = replay_runs(results, clusters, levels=levels, nodes=nodes, **selected)
    count = len(replayed.sweeps) // len(clusters)
    families = [replayed.sweeps[place::count] for place in range(count)]
    if by not in ("nodes", "latency"):
        _check_option(by, families)
    maps = [found for family in families if (found := winner_map(family, by, cluster, nodes)) is not None]
    if not maps:
        raise UserError(
            f"no map of {results}: its runs have no target, or nothing to compare; --target names a level of the "
            "metric"
        )
    return maps, replayed.problems


def winner_map(
    family: Sequence[Sweep], by: str, cluster: str, nodes: Sequence[int] = (), target: Target | None = None
) -> WinnerMap | None:
    """The map of one group of runs; None without a target, or without rows on `nodes`.

    family: the group's sweeps over the bandwidths, one; with `by` latency, one for each latency.
    target: by default the hardest that a row reached.
    """
    group = family[0].groups[0]
    target = target or _hardest_reached(group)
    shown = [count for count in nodes or group.nodes if _rivals(group, count)]
    if target is None or not shown:
        return None
    if by == "nodes":
        lines = [_Line(count, str(count), count, family[0]) for count in shown]
    else:
        on = shown[0] if nodes else max(shown, key=lambda count: (len(_rivals(group, count)), count))
        if by == "latency":
            lines = [_Line(latency, f"{latency * 1e3:g} ms", on, sweep) for latency, sweep in _latencies(family)]
        else:
            lines = [
                _Line(value, option_text(value), on, family[0], _having(by, value))
                for value in _values(group, by, on)
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


def _every(_contender: Contender) -> bool:
    return True


@dataclass(frozen=True)
class _Line:
    """A row of the map: its value and name, its nodes, the runs by bandwidth, and which contenders belong to it."""

    value: int | float | str
    label: str
    nodes: int
    sweep: Sweep
    keeps: Callable[[Contender], bool] = _every


def _rivals(group: Group, nodes: int, keeps: Callable[[Contender], bool] = _every) -> list[Contender]:
    return [contender for contender in group.competing if contender.nodes == nodes and keeps(contender)]


def _latencies(family: Sequence[Sweep]) -> Iterable[tuple[float, Sweep]]:
    for sweep in family:
        profile = sweep.groups[0].profile
        assert profile is not None
        yield profile.latency_s, sweep


def _having(option: str, value: object) -> Callable[[Contender], bool]:
    """Whether a contender has `value` of the option, or has no such option."""
    return lambda contender: contender.settings.get(option, value) == value


def _values(group: Group, option: str, nodes: int) -> list[int | float | str]:
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
        raise unknown_name("axis in --by", option, {"nodes", "latency", *known})


def _hardest_reached(group: Group) -> Target | None:
    """The hardest target that the median of a row reached; the easiest if none did; None without targets."""
    for target in reversed(group.targets):
        if any(math.isfinite(row_time(row, target).seconds.median) for row in group.competing):
            return target
    return next(iter(group.targets), None)


def _tile(rivals: Sequence[Contender], target: Target, bandwidth: float, line: _Line) -> Tile:
    rows = sorted((row_time(row, target) for row in rivals), key=_order)
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
    first, *others = there
    overlapping = [row for row in others if first.overlaps(row)]
    compared = [*there[:2], *overlapping]
    return dataclasses.replace(
        nobody,
        verdict="close" if overlapping else "first" if len(rows) > 1 else "only",
        leaders=(first.contender.name, *(row.contender.name for row in overlapping)),
        method=first.contender.method,
        seconds=first.seconds.median,
        over_next=_lead(first, others[0], target) if others else None,
        rough=any(row.contender.from_start(target.level) for row in compared),
        extrapolated=_never_run(compared),
    )


def _order(row: RowTime) -> tuple[float, int, str]:
    return row.seconds.median, -row.seconds.reached, row.contender.label


def _never_run(rows: Iterable[RowTime]) -> bool:
    return any(row.contender.extrapolated_from is not None for row in rows)


def _lead(first: RowTime, second: RowTime, target: Target) -> float | None:
    """Seconds of `second` over those of `first`: the median over pairs; without pairs the ratio of the medians."""
    seconds = [row.contender.seconds(target.level) for row in (second, first)]
    paired = speed_up(*seconds)
    if paired is not None and paired.ratio is not None:
        return paired.ratio.median
    return second.seconds.median / first.seconds.median if first.seconds.median > 0 else None
