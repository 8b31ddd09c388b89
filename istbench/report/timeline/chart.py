"""One round of each method of a table as bars, for the page of a report."""

from collections.abc import Iterable

from istbench.base.errors import UserError
from istbench.cluster.trace_file import load_trace
from istbench.report.groups import Contender, Group
from istbench.report.plots.plot import Bar, Bars
from istbench.report.timeline.bars import (
    ACTIVITY_NAMES,
    COLLECTIVE_NAME,
    BarKind,
    View,
    bar_colour,
    timeline_views,
)
from istbench.report.timeline.recorded import recorded_round
from istbench.report.timeline.simulated import simulated_round
from istbench.report.timeline.timeline import Timeline, typical_round

# More nodes give no readable chart, and more methods and bars a page too large for a mail.
_MOST_NODES, _MOST_METHODS, _MOST_BARS = 8, 12, 300


def round_charts(group: Group) -> list[Bars]:
    """A typical round of each row name of `group`, on its most nodes up to eight, and its transfers enlarged.

    It is as recorded, or replayed on the cluster of `group`. Runs without a sound trace have none.
    """
    shown: dict[str, Contender] = {}
    for contender in group.contenders:
        if contender.nodes <= _MOST_NODES and contender.extrapolated_from is None:
            shown[contender.name] = contender
    return [chart for contender in list(shown.values())[:_MOST_METHODS] for chart in _charts(group, contender)]


def _charts(group: Group, contender: Contender) -> Iterable[Bars]:
    run = contender.runs[0]
    if not run.directory.trace.exists():
        return
    try:
        trace = load_trace(run.directory.trace)
        number = typical_round(trace)
        timeline = (
            recorded_round(trace, number)
            if group.profile is None
            else simulated_round(trace, group.profile, number)
        )
    except UserError:  # the report names this run among its problems
        return
    whole, *enlarged = timeline_views(timeline, _MOST_BARS)
    title = f"{contender.placed}, seed {run.header.seed}"
    yield _chart(timeline, whole, f"{group.stem}-{run.header.cell}", title)
    for view in enlarged:
        yield _chart(timeline, view, f"{group.stem}-{run.header.cell}-transfers", f"{title}: transfers, enlarged")


def _chart(timeline: Timeline, view: View, stem: str, title: str) -> Bars:
    scale, unit = timeline.unit
    rows: dict[str, None] = {}
    bars: list[Bar] = []
    kinds: set[BarKind] = set()
    for node, lane in enumerate(view.lanes):
        own = [
            (f"node {node}", [lane.activities]),
            *((f"{node} {way}", each) for way, each in lane.transfers.items()),
        ]
        for row, lines in own:
            rows[row] = None
            for bar in (bar for line in lines for bar in line):
                kinds.add(bar.kind)
                bars.append(Bar(row=row, part=_name(bar.kind), start=bar.start * scale, end=bar.end * scale))
    return Bars(
        stem=stem,
        title=title,
        subtitle=f"round {timeline.round}, {timeline.where}",
        x_label=f"time in the round ({unit})",
        rows=tuple(rows),
        parts=tuple((_name(kind), bar_colour(kind)) for kind in sorted(kinds, key=_order)),
        bars=tuple(bars),
    )


def _order(kind: BarKind) -> tuple[int, int]:
    """Activities first, then transfers by node."""
    if isinstance(kind, str):
        return 0, list(ACTIVITY_NAMES).index(kind)
    return 1, -1 if kind is None else kind


def _name(kind: BarKind) -> str:
    if kind is None:
        return COLLECTIVE_NAME
    return ACTIVITY_NAMES[kind] if isinstance(kind, str) else f"to or from node {kind}"
