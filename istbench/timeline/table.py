"""Where the seconds of one round went, as a table."""

from istbench.report.tables.table import Column, Entry, Table, number, plain
from istbench.timeline.timeline import KINDS, Timeline

_LEAST_STALLED_SHARE = 0.05


def timeline_table(timeline: Timeline, title: str) -> Table:
    """A row a node: seconds of its round in computing, exposed communication and being idle, and all together."""
    rows = []
    for node, (begin, end) in enumerate(timeline.limits):
        spent = [timeline.spent(node, kind) for kind in KINDS]
        rows.append(
            (plain(node), *(Entry(text=number(seconds), value=seconds) for seconds in (*spent, end - begin)))
        )
    return Table(
        title=f"{title}, round {timeline.round}, {timeline.where}",
        columns=(
            Column(key="node", title="node"),
            Column(key="compute_s", title="compute s"),
            Column(key="communication_s", title="exposed communication s"),
            Column(key="idle_s", title="idle s"),
            Column(key="total_s", title="total s"),
        ),
        rows=tuple(rows),
        footer=_remarks(timeline),
        context={"round": timeline.round, "times": timeline.where},
    )


def _remarks(timeline: Timeline) -> tuple[str, ...]:
    computing = [own for own in timeline.activities if own.kind == "compute"]
    wall, busy = sum(own.seconds for own in computing), sum(own.busy_s for own in computing)
    if wall - busy < _LEAST_STALLED_SHARE * wall:
        return ()
    return (
        f"In {1 - busy / wall:.0%} of the compute seconds a node had no core to itself, or it evaluated; "
        "a replay (--cluster) leaves those out.",
    )
