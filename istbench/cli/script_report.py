"""The steps of a recorded script by several methods, on several numbers of nodes and clusters."""

from collections.abc import Sequence

from istbench.base.errors import UserError
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.script_record import ScriptRecord
from istbench.plan.script_plan import assumptions
from istbench.plan.script_trace import chosen_methods, methods_for, script_time, script_trace
from istbench.report.report import Report
from istbench.report.tables.script import steps_table


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
    chosen = chosen_methods(methods)
    traces = []
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
    tables = [
        steps_table(
            record, profile, [script_time(record, method, trace, profile) for method, trace in traces],
            (*assumptions(record), *assumed),
        )
        for profile in profiles
    ]  # fmt: skip
    return Report(tables=tuple(tables), plots=(), problems=tuple(problems))
