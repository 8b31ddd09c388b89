"""The second table of a group on a cluster's clock: what its nodes do with the time, and what that costs."""

from collections.abc import Callable, Iterable

from istbench.cluster.clock import ClusterTime, dollars
from istbench.config.defaults import BASELINE
from istbench.report.groups import Contender, Group
from istbench.report.tables.comparison import group_context
from istbench.report.tables.table import Column, Entry, Table, number, plain
from istbench.results.stats import median


def spending(group: Group, baseline: str = BASELINE) -> Table:
    """Where the time goes, a row for each method and number of nodes; `group` must be on a cluster's clock.

    Every figure is the median over seeds.
    """
    columns = (
        Column(key="method", title="method", align="left"),
        Column(key="nodes", title="nodes"),
        Column(key="samples_per_s", title="samples a second"),
        Column(key="compute_percent", title="compute %"),
        Column(key="communication_percent", title="communication %"),
        Column(key="idle_percent", title="idle %"),
        Column(key="link_use_percent", title="link use %"),
        Column(key="dollars_per_hour", title="$ an hour"),
        Column(key="cluster_s", title="seconds to the end"),
        Column(key="dollars", title="$ to the end"),
    )
    return Table(
        title=f"{group.workload_label}: where the time goes on {group.machine}",
        columns=columns,
        rows=tuple(_row(group, contender) for contender in group.contenders),
        footer=tuple(_footer(group)),
        keys=2,
        context=group_context(group, baseline),
    )


def _row(group: Group, contender: Contender) -> tuple[Entry, ...]:
    assert group.profile is not None
    per_hour = dollars(group.profile, contender.nodes, 3600)
    return (
        plain(contender.label),
        plain(contender.nodes),
        _figure(_samples_per_second(contender)),
        _percent(contender, lambda time: time.compute),
        _percent(contender, lambda time: time.communication),
        _percent(contender, lambda time: time.idle),
        _percent(contender, lambda time: time.link_use),
        _figure(per_hour),
        _figure(contender.trained()),
        _figure(dollars(group.profile, contender.nodes, contender.trained())),
    )


def _samples_per_second(contender: Contender) -> float:
    ends = [(run.curve.evaluations[-1].samples, run.curve.seconds[-1]) for run in contender.runs]
    return median([samples / seconds if seconds else 0.0 for samples, seconds in ends])


def _figure(value: float) -> Entry:
    return Entry(text=number(value), value=value)


def _percent(contender: Contender, share: Callable[[ClusterTime], float]) -> Entry:
    value = 100 * median([share(run.cluster) for run in contender.runs if run.cluster is not None])
    return Entry(text=f"{value:.1f}", value=value)


def _footer(group: Group) -> Iterable[str]:
    yield (
        "Shares of the time, mean over nodes. Communication: waiting for an operation that every node taking part "
        "has posted, so not what compute hides. Idle: waiting for another node to post its part."
    )
    yield (
        "Link use: payload over capacity of the busiest node's link, in its busier direction. Samples a second: of "
        "all nodes. $: for all nodes, while they train."
    )
    if group.profile is not None:
        price = group.profile
        yield f"A node is ${price.price_per_hour:g} an hour ({price.price_date}; {price.price_source})."
