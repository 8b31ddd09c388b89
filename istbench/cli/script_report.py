"""The steps of a recorded script by several methods, on several numbers of nodes and clusters."""

from collections.abc import Mapping, Sequence

from istbench.base.errors import UserError
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.script_record import ScriptRecord
from istbench.cluster.trace import Trace
from istbench.plan.script_plan import assumptions
from istbench.plan.script_time import ChosenMethod, chosen_methods, script_time
from istbench.plan.script_trace import methods_for, script_trace
from istbench.report.report import Report
from istbench.report.tables.script import steps_sentence, steps_table
from istbench.report.tables.script_map import FastestMap


def script_report(
    record: ScriptRecord,
    profiles: Sequence[ClusterProfile],
    nodes: Sequence[int],
    methods: Sequence[str] = (),
    assumed: Sequence[str] = (),
) -> Report:
    """A table for each of `profiles`. methods: as typed; by default all whose messages follow from sizes, without
    those that cannot train such a script. assumed: phrases about the clusters.

    A method that cannot train the recorded model, or has too many messages, is a problem of the report.

    Raises:
        UserError: if none can, for a typed method that is unknown, or whose messages need more than sizes.
    """
    traces, problems = _traces(record, nodes, methods)
    times = [[script_time(record, method, trace, profile) for method, trace in traces] for profile in profiles]
    on_each = list(zip(profiles, times, strict=True))
    said = (*assumptions(record), *assumed)
    return Report(
        answers=tuple(steps_sentence(record, profile, own) for profile, own in on_each),
        tables=tuple(steps_table(record, profile, own, said) for profile, own in on_each),
        plots=(),
        problems=problems,
    )


def script_map(
    record: ScriptRecord,
    families: Mapping[str, Sequence[ClusterProfile]],
    nodes: Sequence[int],
    methods: Sequence[str] = (),
    assumed: Sequence[str] = (),
    by: str = "nodes",
) -> tuple[FastestMap, tuple[str, ...]]:
    """The fastest method at each bandwidth, by numbers of nodes or by latency; and problems as in `script_report`.

    families: profiles by rising bandwidth, one; with `by` latency one for each latency, on one number of nodes.

    Raises:
        UserError: as `script_report` does.
    """
    traces, problems = _traces(record, nodes, methods)
    rows = {}
    for family in families.values():
        for count in nodes:
            row = f"{family[0].latency_s * 1e3:g} ms" if by == "latency" else str(count)
            rows[row] = tuple(
                tuple(
                    script_time(record, method, trace, profile)
                    for method, trace in traces
                    if trace.world_size == count
                )
                for profile in family
            )
    cluster = next(iter(families)).partition(" with ")[0]
    found = FastestMap(record=record, cluster=cluster, by=by, rows=rows, assumed=(*assumptions(record), *assumed))
    return found, problems


def _traces(
    record: ScriptRecord, nodes: Sequence[int], methods: Sequence[str]
) -> tuple[list[tuple[ChosenMethod, Trace]], tuple[str, ...]]:
    """A trace for each method and number of nodes, and a line for each method that has none there."""
    chosen = chosen_methods(methods)
    traces: list[tuple[ChosenMethod, Trace]] = []
    problems: dict[str, None] = {}
    for method in chosen or methods_for(record):
        for count in nodes:
            try:
                traces.append((method, script_trace(record, method, count)))
            except UserError as error:
                if len(chosen) == 1:
                    raise
                problems[f"{method.label}: {error}"] = None
    if not traces:
        raise UserError(f"nothing to replay of {record.script}: {next(iter(problems))}")
    return traces, tuple(problems)
