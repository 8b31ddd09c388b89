"""How each node spent a round, as a table."""

from istbench.report.table import Cell, Column, Table, number, plain
from istbench.report.timeline import Kind, Timeline

_KINDS: tuple[Kind, ...] = ("compute", "communication", "idle")


def timeline_table(timeline: Timeline, title: str) -> Table:
    """A row for each node: seconds of computing and of waiting."""
    recorded = timeline.origin == "recorded"
    idle = "not on a core s" if recorded else "waiting for another node s"
    titles = {"compute": "compute s", "communication": "waiting for the network s", "idle": idle}
    rows = []
    for node in range(timeline.nodes):
        seconds = [timeline.total(node, kind) for kind in _KINDS]
        cells = [Cell(text=number(value), value=value) for value in (*seconds, sum(seconds))]
        rows.append((plain(node), *cells))
    said = (
        "Recorded: waiting for another node and for the network are not told apart. Not on a core: nodes sharing "
        "one, and waiting inside torch, as data parallel's backward pass does."
    )
    footer = (said,) if recorded else ()
    return Table(
        title=title,
        columns=(
            Column(key="node", title="node"),
            *(Column(key=f"{kind}_s", title=titles[kind]) for kind in _KINDS),
            Column(key="total_s", title="total s"),
        ),
        rows=tuple(rows),
        footer=footer,
    )
