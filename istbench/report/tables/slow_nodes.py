"""Sentences on the slow node of a run: the wait of the others, and what `--shares` would save."""

from collections.abc import Iterable, Sequence

from istbench.base.options.shares import Shares
from istbench.report.groups import Contender, Group
from istbench.report.phrases import Caution
from istbench.results.header import Header, NodeSeconds
from istbench.results.slow_node import Straggler, straggler

_MATTERS = 0.1  # of the train seconds
_MOST_NUMBERS = 8


def slow_node_words(header: Header, nodes: Sequence[NodeSeconds], shares: Sequence[float]) -> str:
    """A sentence without its subject, the slow node; empty if the others wait for it in under a tenth of the time.

    shares: of the samples or units of each node, by rank; empty if they are equal.
    """
    found = straggler(nodes, shares)
    if found is None or found.waited < _MATTERS:
        return ""
    slow = (
        f"computes at {found.speed:.2f} of the others' speed"
        if found.speed < 1
        else "has more than its share of the work"
    )
    wait = "the other waits" if len(nodes) == 2 else "the others wait"
    return f"{slow}; {wait} for it in {found.waited:.0%} of the train seconds{_way_out(header, found)}"


def _way_out(header: Header, found: Straggler) -> str:
    if not header.takes_shares or found.saved < _MATTERS / 2:
        return ""
    few = len(found.speeds) <= _MOST_NUMBERS
    typed = Shares([round(speed, 2) or 0.01 for speed in found.speeds]) if few else Shares()
    # Layers that ist leaves whole take as long as before.
    about = "at most" if header.takes_shares == "units" else "about"
    return f", and --shares {typed} would save {about} {found.saved:.0%}"


def slow_node_lines(group: Group) -> Iterable[str]:
    """A warning for a footer about the row of `group` whose nodes wait longest for a slow one."""
    rows = [(row, found) for row in group.contenders if (found := straggler(row.node_seconds, row.shares))]
    if not rows:
        return
    row, found = max(rows, key=lambda pair: pair[1].waited)
    words = slow_node_words(row.runs[0].header, row.node_seconds, row.shares)
    if words:
        more = sum(other.waited >= _MATTERS for _, other in rows) - 1
        others = "Another row waits" if more == 1 else f"{more} other rows wait"
        also = f" {others} for a slow node too." if more else ""
        yield Caution(f"Slow node: in {row.placed}, {_place(row, found)} {words}.{also}")


def _place(row: Contender, found: Straggler) -> str:
    hosts = {node.host for node in row.node_seconds}
    return f"rank {found.slowest.rank}" + (f" ({found.slowest.host})" if len(hosts) > 1 else "")
