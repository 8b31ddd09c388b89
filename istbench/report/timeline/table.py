"""The seconds of one round by node and activity, as a table."""

from functools import partial

from istbench.report.tables.numbers import rounded
from istbench.report.tables.table import ColumnOf, Entry, Table, plain, table_of
from istbench.report.timeline.timeline import ActivityKind, Timeline

_LEAST_STALLED_SHARE = 0.05


def timeline_table(timeline: Timeline, title: str, remarks: tuple[str, ...] = ()) -> Table:
    """A row for each node: its seconds of computing, exposed communication and idling, and their sum.

    remarks: lines of the footer.
    """
    return table_of(
        _columns(timeline),
        range(timeline.nodes),
        title=f"{title}, round {timeline.round}, {timeline.where}",
        footer=(*_remarks(timeline), *remarks),
        context={"round": timeline.round, "times": timeline.where},
    )


def _columns(timeline: Timeline) -> list[ColumnOf[int]]:
    def spent(kind: ActivityKind, node: int) -> Entry:
        return rounded(timeline.spent(node, kind))

    def total(node: int) -> Entry:
        begin, end = timeline.limits[node]
        return rounded(end - begin)

    return [
        ColumnOf(key="node", title="node", entry=plain),
        ColumnOf(key="compute_s", title="compute s", entry=partial(spent, "compute")),
        ColumnOf(key="communication_s", title="exposed communication s", entry=partial(spent, "communication")),
        ColumnOf(key="idle_s", title="idle s", entry=partial(spent, "idle")),
        ColumnOf(key="total_s", title="total s", entry=total),
    ]


def _remarks(timeline: Timeline) -> tuple[str, ...]:
    computing = [own for own in timeline.activities if own.kind == "compute"]
    wall, busy = sum(own.seconds for own in computing), sum(own.busy_s for own in computing)
    if wall - busy < _LEAST_STALLED_SHARE * wall:
        return ()
    return (
        f"In {1 - busy / wall:.0%} of the compute seconds a node had no core to itself, or evaluated. "
        "A replay (--cluster) leaves them out.",
    )
