"""How the nodes of each row spend the time: as replayed, with the dollars, or as measured, node by node."""

from collections.abc import Callable, Iterable

from istbench.base.options.defaults import BASELINE
from istbench.cluster.profile import ClusterProfile
from istbench.report.groups import Contender, RunGroup
from istbench.report.phrases import Caution, Lead, checks_line, data_line, guide_line, sustained_line
from istbench.report.tables.group_columns import group_table, shared_line
from istbench.report.tables.numbers import number, of_hundred, rounded
from istbench.report.tables.stalls import SHARED_CORES, group_stall_lines
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Scalar, Table, column
from istbench.results.header import NodeSeconds
from istbench.results.stats import median


def spending(group: RunGroup, baseline: str = BASELINE) -> Table:
    """Shares of the time and dollars, a row for each method and number of nodes, as medians over seeds.

    `group` must be on the clock of a cluster.
    """
    assert group.profile is not None

    def share(name: str, title: str) -> ColumnOf[Contender]:
        return column(f"{name}_percent", title, lambda row: of_hundred(row.time_share(name)))

    def dollars(key: str, title: str, seconds: Callable[[Contender], float]) -> ColumnOf[Contender]:
        return column(key, title, lambda row: rounded(group.dollars(row, seconds(row))), optional=True)

    return group_table(
        group,
        baseline,
        [
            column("samples_per_s", "samples per second", _samples_per_second),
            share("compute", "compute %"),
            share("communication", "communication %"),
            share("idle", "idle %"),
            share("link_use", "busiest link in use %"),
            share("carrying", "cores busy with messages %"),
            dollars("dollars_per_hour", "$ per hour", lambda _: 3600),
            column("cluster_s", "seconds to the end", lambda row: rounded(row.trained().median)),
            dollars("dollars", "$ to the end", lambda row: row.trained().median),
        ],
        group.contenders,
        title=f"{group.workload_label}: where the replayed time goes on {group.machine}",
        footer=(
            data_line(group.source),
            *shared_line(group),
            Lead(f"Clock: replayed seconds. {_price_line(group.profile)}"),
            *checks_line(group.times),
            *sustained_line(group.profile),
            *_careful(group),
            guide_line("tables.md#where-the-time-goes"),
        ),
    )


# From this share on some replays were too fast: ddp by up to 5 %, p3 by up to 8 % (results/validation).
_MUCH_CARRYING = 0.15


def _samples_per_second(contender: Contender) -> Entry:
    ends = [(run.curve.evaluations[-1].samples, run.curve.seconds[-1]) for run in contender.runs]
    return rounded(median([samples / seconds if seconds else 0.0 for samples, seconds in ends]))


def _price_line(profile: ClusterProfile) -> str:
    if not profile.priced:
        return "Its price is unknown."
    said = "; ".join(filter(None, (profile.price_date, profile.price_source)))
    machine = "A node" if profile.host is None else f"A host of {profile.host.nodes} nodes"
    return f"{machine} costs ${profile.price_per_hour:g} per hour ({said})."


def _careful(group: RunGroup) -> Iterable[str]:
    most = max((time.carrying for time in group.times), default=0.0)
    if most > _MUCH_CARRYING:
        yield Caution(
            f"Careful: sending and receiving take up to {100 * most:.0f} % of a node's cores here. Above "
            f"{100 * _MUCH_CARRYING:.0f} %, some replays were too fast, those of p3 by up to 8 %."
        )


def node_seconds_table(group: RunGroup, baseline: str = BASELINE) -> Table | None:
    """A row for each method and number of nodes whose runs measured these seconds, as medians over seeds.

    None without such runs.
    """
    rows = [row for row in group.contenders if len(row.node_seconds) > 1]
    if not rows:
        return None
    shared = any(len({node.host for node in row.node_seconds}) < len(row.node_seconds) for row in rows)
    return group_table(
        group,
        baseline,
        _COLUMNS,
        rows,
        title=f"{group.workload_label}: computing and waiting by node on {group.machine}",
        footer=(
            data_line(group.source),
            *shared_line(group),
            Lead("Clock: train seconds, from the node with the fewest seconds to the node with the most."),
            *([Caution(SHARED_CORES)] if shared and group.device == "cpu" and not group.host.lab else []),
            *group_stall_lines(group),
            guide_line("tables.md#computing-and-waiting-by-node"),
        ),
    )


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
    if row.straggler is None:
        return NOTHING
    node = row.straggler.slowest
    return Entry(text=f"rank {node.rank} ({node.host})", value={"rank": node.rank, "host": node.host})


def _waited(row: Contender) -> Entry:
    return NOTHING if row.straggler is None else rounded(row.straggler.waited_s)


_COLUMNS: tuple[ColumnOf[Contender], ...] = (
    column("computing_s", "computing s per node", _span(lambda node: node.computing_s)),
    column("waiting_s", "waiting s per node", _span(lambda node: node.waiting_s)),
    column("slowest_node", "slowest node", _slowest, align="left"),
    column("waited_for_slowest_s", "s the others wait for it", _waited),
)
