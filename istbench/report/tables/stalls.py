"""Sentences on stalls and slow nodes, for the tables that show train seconds."""

from collections.abc import Iterable, Sequence

from istbench.base.options.shares import Shares
from istbench.report.groups import Contender, RunGroup
from istbench.report.phrases import Caution, count_nodes
from istbench.report.tables.numbers import number
from istbench.results.header import Header
from istbench.results.load import Run
from istbench.results.slow_node import Straggler

_NAMED = 8


def stall_lines(runs: Sequence[Run]) -> list[str]:
    """A warning for a footer if the train seconds of some `runs` include stalls."""
    stalled = [run for run in runs if run.stalls]
    if not stalled:
        return []
    if len(runs) == 1:
        return [Caution(f"Careful: {stall_words(stalled[0])}.")]
    named = [f"{run_name(run)}: {stall_words(run)}" for run in stalled[:_NAMED]]
    more = f"; and {len(stalled) - _NAMED} more" if len(stalled) > _NAMED else ""
    return [Caution(f"Careful: stalls in {len(stalled)} of {len(runs)} runs. {'; '.join(named)}{more}.")]


def group_stall_lines(group: RunGroup) -> list[str]:
    """The same for the runs of `group`, unless its seconds are replayed."""
    return [] if group.clock == "cluster_s" else stall_lines(group.runs)


def stall_words(run: Run) -> str:
    """`3.0 of 4.1 train seconds passed in a stall of worker 1 at step 40 (operation); 1.1 s without it`."""
    longest = max(run.stalls, key=lambda stall: stall.seconds / stall.count)
    trained = run.curve.evaluations[-1].train_s if run.curve.evaluations else 0.0
    of = "of all workers" if longest.rank is None else f"of worker {longest.rank}"
    doing = f" ({longest.operation})" if longest.operation else ""
    where = f"{of} at step {longest.step}{doing}"
    count = sum(stall.count for stall in run.stalls)
    places = f"a stall {where}" if count == 1 else f"{count:,} stalls, the longest {where}"
    rest = f"{number(max(0.0, trained - run.stalled_s))} s without {'it' if count == 1 else 'them'}"
    return f"{number(run.stalled_s)} of {number(trained)} train seconds passed in {places}; {rest}"


def run_name(run: Run) -> str:
    """`ist on 4 nodes seed 0`."""
    header = run.header
    return f"{header.method_label} on {count_nodes(header.nodes)} seed {header.seed}"


SHARED_CORES = "Nodes of one machine share its cores: waiting for a core counts as computing."
_MATTERS = 0.1  # of the train seconds
_MOST_NUMBERS = 8


def slow_node_words(header: Header, found: Straggler) -> str:
    """A sentence without its subject, the slow node; empty if others wait for it in under a tenth of the time."""
    if found.waited < _MATTERS:
        return ""
    slow = (
        f"computes at {found.speed:.2f} of the others' speed"
        if found.speed < 1
        else "has more than its share of the work"
    )
    wait = "the other waits" if len(found.speeds) == 2 else "the others wait"
    return f"{slow}; {wait} for it in {found.waited:.0%} of the train seconds{_way_out(header, found)}"


def _way_out(header: Header, found: Straggler) -> str:
    if not header.takes_shares or found.saved < _MATTERS / 2:
        return ""
    few = len(found.speeds) <= _MOST_NUMBERS
    typed = Shares([round(speed, 2) or 0.01 for speed in found.speeds]) if few else Shares()
    # Layers that ist leaves whole take as long as before.
    about = "at most" if header.takes_shares == "units" else "about"
    return f", and --shares {typed} would save {about} {found.saved:.0%}"


def slow_node_lines(group: RunGroup) -> Iterable[str]:
    """A warning for a footer about the row of `group` whose nodes wait longest for a slow one."""
    rows = [(row, row.straggler) for row in group.contenders if row.straggler is not None]
    if not rows:
        return
    row, found = max(rows, key=lambda pair: pair[1].waited)
    if words := slow_node_words(row.header, found):
        more = sum(other.waited >= _MATTERS for _, other in rows) - 1
        others = "Another row waits" if more == 1 else f"{more} other rows wait"
        also = f" {others} for a slow node too." if more else ""
        yield Caution(f"Slow node: in {row.placed}, {_place(row, found)} {words}.{also}")


def _place(row: Contender, found: Straggler) -> str:
    hosts = {node.host for node in row.node_seconds}
    return f"rank {found.slowest.rank}" + (f" ({found.slowest.host})" if len(hosts) > 1 else "")
