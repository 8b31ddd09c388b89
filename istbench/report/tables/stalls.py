"""Sentences on stalls, for the tables that show train seconds."""

from collections.abc import Sequence

from istbench.report.groups import Group
from istbench.report.phrases import Caution, count_nodes
from istbench.report.tables.numbers import number
from istbench.results.load import Run

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


def group_stall_lines(group: Group) -> list[str]:
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
