"""Reasons to doubt an answer."""

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from istbench.base.errors import UserError
from istbench.report.groups import Group
from istbench.report.phrases import joined
from istbench.report.row_time import RowTime
from istbench.results.load import Run

EXPECTED = ("ddp", "local_sgd", "diloco")
"""Methods that a reader expects among the contenders."""

_FEWEST_SEEDS = 3
_WITHOUT_CORE = 0.2  # on an idle machine it is up to a tenth


def doubts(group: Group, shown: Sequence[RowTime]) -> tuple[str, ...]:
    """Reasons to doubt that the first of the rows `shown` is first, in a few words each; none for a sure answer."""
    return tuple(dict.fromkeys(_doubts(group, shown)))


def _doubts(group: Group, shown: Sequence[RowTime]) -> Iterable[str]:
    seeds = min((row.seconds.seeds for row in shown), default=_FEWEST_SEEDS)
    if seeds < _FEWEST_SEEDS:
        yield "one seed" if seeds == 1 else "two seeds"
    if not group.tuning.startswith("tuned by"):
        yield group.tuning
    methods = {row.method for row in group.competing}
    if missing := [name for name in EXPECTED if name not in methods]:
        yield f"without {joined(missing)}"
    runs = [run for row in shown for run in row.contender.runs]
    if group.profile is not None:
        yield from (run.doubt for run in runs if run.doubt)
        if len(shown) > 1 and _may_swap(*shown[:2]):
            yield "the ranges of what is known of computing overlap"
        return
    cores, most = group.host.cores, max((row.contender.nodes for row in shown), default=0)
    if group.device == "cpu" and cores and not group.host.lab:
        if most > cores:
            yield f"{most} nodes took turns on {cores} cores"
        else:
            yield from filter(None, [max(map(_others, runs), default="")])
    if any(run.stalls for run in runs):
        yield "something outside training held up a run"


def _may_swap(first: RowTime, second: RowTime) -> bool:
    ranges = [row.contender.known_range for row in (first, second)]
    if ranges[0] is None or ranges[1] is None:
        return False
    return second.seconds.median * ranges[1][0] <= first.seconds.median * ranges[0][1]


def _others(run: Run) -> str:
    """A doubt of the train seconds of `run`, whose nodes had a core each; empty without one."""
    trace = run.directory.trace
    return _others_in(trace, trace.stat().st_mtime_ns) if trace.exists() else ""


@functools.lru_cache(maxsize=1000)
def _others_in(path: Path, _written_ns: int) -> str:
    from istbench.cluster.shared_cores import without_core
    from istbench.cluster.trace_file import load_trace

    try:
        trace = load_trace(path)
    except UserError:
        return ""  # the replay says what is wrong with it
    if trace.meta.doubt:
        return trace.meta.doubt
    share = without_core(trace)
    # A node's own messages and work beside training may take its core, too.
    if share < _WITHOUT_CORE or trace.meta.transport or trace.has_work:
        return ""
    return f"in {share:.0%} of the compute seconds a node had no core to itself"
