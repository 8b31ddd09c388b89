"""The table of the seconds that each node computes and waits."""

from collections.abc import Callable

from istbench.base.options.defaults import BASELINE
from istbench.report.groups import Contender, Group
from istbench.report.phrases import Caution, Lead, data_line, guide_line
from istbench.report.tables.group_columns import NAMING, group_context, shared_line
from istbench.report.tables.numbers import number, rounded
from istbench.report.tables.stalls import group_stall_lines
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Scalar, Table, table_of
from istbench.results.header import NodeSeconds
from istbench.results.slow_node import straggler
from istbench.results.stats import median


def node_seconds_table(group: Group, baseline: str = BASELINE) -> Table | None:
    """A row for each method and number of nodes whose runs measured these seconds, as medians over seeds.

    None without such runs.
    """
    rows = [row for row in group.contenders if len(row.node_seconds) > 1]
    if not rows:
        return None
    shared = any(len({node.host for node in row.node_seconds}) < len(row.node_seconds) for row in rows)
    return table_of(
        _COLUMNS,
        rows,
        title=f"{group.workload_label}: computing and waiting by node on {group.machine}",
        footer=(
            data_line(group.source),
            *shared_line(group),
            Lead("Clock: train seconds, from the node with the fewest seconds to the node with the most."),
            *([_SHARED] if shared and group.device == "cpu" and not group.host.lab else []),
            *group_stall_lines(group),
            guide_line("tables.md#computing-and-waiting-by-node"),
        ),
        keys=len(NAMING),
        context=group_context(group, baseline),
    )


_SHARED = Caution("Nodes of one machine share its cores: waiting for a core counts as computing.")


def _span(seconds: Callable[[NodeSeconds], float]) -> Callable[[Contender], Entry]:
    def entry(row: Contender) -> Entry:
        values = [seconds(node) for node in row.node_seconds]
        by_rank: dict[str, Scalar] = {f"rank_{node.rank}": seconds(node) for node in row.node_seconds}
        return Entry(
            text=f"{number(min(values))} to {number(max(values))}",
            value={"least": min(values), "median": median(values), "most": max(values), **by_rank},
        )

    return entry


def _slowest(row: Contender) -> Entry:
    found = straggler(row.node_seconds, row.shares)
    if found is None:
        return NOTHING
    node = found.slowest
    return Entry(
        text=f"rank {node.rank} ({node.host})",
        value={"rank": node.rank, "host": node.host},
    )


def _waited(row: Contender) -> Entry:
    found = straggler(row.node_seconds, row.shares)
    return NOTHING if found is None else rounded(found.waited_s)


_COLUMNS: tuple[ColumnOf[Contender], ...] = (
    *NAMING,
    ColumnOf(key="computing_s", title="computing s per node", entry=_span(lambda node: node.computing_s)),
    ColumnOf(key="waiting_s", title="waiting s per node", entry=_span(lambda node: node.waiting_s)),
    ColumnOf(key="slowest_node", title="slowest node", align="left", entry=_slowest),
    ColumnOf(key="waited_for_slowest_s", title="s the others wait for it", entry=_waited),
)
