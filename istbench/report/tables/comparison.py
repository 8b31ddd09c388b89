"""The main table of a group: the seconds to each target, and their cost; and the same for one target."""

import math
from collections.abc import Sequence
from functools import partial

from istbench.base.options.defaults import BASELINE
from istbench.report.baseline import Pairing, baseline_rows, pair
from istbench.report.groups import Contender, RunGroup
from istbench.report.phrases import ROUGH
from istbench.report.tables.comparison_footer import comparison_footer
from istbench.report.tables.group_columns import group_table
from istbench.report.tables.numbers import (
    finite,
    interval,
    machine_value,
    metric_value,
    number,
    rounded,
    with_interval,
)  # fmt: skip
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Scalar, Table, column
from istbench.report.targets import Target
from istbench.results.stats import SeedMedian, median, seed_median

_MEGA = 1e6


def comparison(group: RunGroup, baseline: str = BASELINE) -> Table:
    """The main table of a group: a row for each method and number of nodes.

    baseline: method, or method with options, that speed-ups are against, on as many nodes; see `report.baseline`.
    """
    what = f"{group.clock_words} to {group.metric.name} on {group.machine}"
    return group_table(
        group,
        baseline,
        [
            EXTRAPOLATED,
            column("seeds", "seeds", lambda row: row.seeds),
            *(seconds_to(group, target) for target in group.targets),
            *([seconds_to_the_end(group)] if group.close_targets else []),
            RANGE,
            speed_up(group, baseline, None),
            *([] if group.clock == "cluster_s" else [_STALLED]),
            *cost(group),
        ],
        group.contenders,
        title=f"{group.workload_label}, {group.source.seen}, {group.budget}: {what}",
        footer=comparison_footer([group], baseline),
    )


def comparison_to(group: RunGroup, target: Target, baseline: str = BASELINE) -> Table:
    """The main table of a group for one target: the soonest first, dollars, and speed-ups to this target alone."""

    def reached(row: Contender) -> Entry:
        found = row.time(target.level)
        return Entry(text=f"{found.reached}/{found.seeds}", value=found.reached / found.seeds)

    rows = sorted(group.contenders, key=lambda row: soonest(row, target))
    return group_table(
        group,
        baseline,
        [
            EXTRAPOLATED,
            column("reached", "seeds that reach it", reached),
            seconds_to(group, target),
            RANGE,
            speed_up(group, baseline, [target]),
            *dollars_to(group, target),
            *cost(group),
        ],
        rows,
        title=f"{group.workload_label}: {group.clock_words} to {target.of(group.metric)} on {group.machine}",
    )


def soonest(row: Contender, target: Target) -> tuple[float, float]:
    """Sorts rows by their seconds to `target`; those that miss it by their final value, the best first."""
    final = row.runs[0].curve.metric.signed(median(row.finals().values()))
    return row.time(target.level).median, -final


def seconds_to(group: RunGroup, target: Target) -> ColumnOf[Contender]:
    """The seconds to `target` on the clock of `group`, and the seeds that reached it if not all did."""
    return column(f"{group.clock}_to_{target.key}", f"seconds to {target.text}", partial(_time, group, target))


def speed_up(group: RunGroup, baseline: str, targets: Sequence[Target] | None) -> ColumnOf[Contender]:
    """The speed-up over the row of `baseline` to the hardest of `targets`; see `pair`."""
    return column("speed_up", f"speed-up over {baseline}", partial(_speed_up, group, baseline, targets))


def dollars_to(group: RunGroup, target: Target) -> list[ColumnOf[Contender]]:
    """The dollars to `target`; nothing without a price."""
    if group.profile is None or not group.profile.priced:
        return []

    def entry(row: Contender) -> Entry:
        return rounded(group.dollars(row, row.time(target.level).median))

    return [column("dollars", "$ to target", entry)]


def cost(group: RunGroup) -> list[ColumnOf[Contender]]:
    """The columns behind the seconds: the final metric, traffic and memory."""
    return [
        column(f"final_{group.metric.name}", f"final {group.metric.title}", _final),
        column("sent_mb_per_node", "total MB sent per node", partial(_megabytes, "bytes_sent_per_node")),
        column(
            "peak_memory_mb_per_node",
            "peak MB per node",
            partial(_megabytes, "peak_memory_bytes_per_node"),
            optional=True,
        ),
    ]


def _extrapolated(contender: Contender) -> Entry:
    recorded = contender.extrapolated_from
    return NOTHING if recorded is None else Entry(text=f"from {recorded}, never run", value=recorded)


def _time(group: RunGroup, target: Target, contender: Contender) -> Entry:
    found = contender.time(target.level)
    value = machine_value(found)
    rough = contender.from_start(target.level)
    value["before_first_evaluation"] = rough
    if target.share is not None:
        value["level"] = target.level
    if group.profile is not None:
        value["dollars"] = group.dollars(contender, found.median)
    if found.reached == 0:
        return Entry(text=f"not reached in {number(contender.trained().median)}", value=value)
    count = "" if found.reached == found.seeds else f" {found.reached}/{found.seeds}"
    if math.isinf(found.median):
        return Entry(text=f"> {number(contender.trained().median)}{count}", value=value)
    return Entry(text=(ROUGH if rough else "") + with_interval(found, number) + count, value=value)


def seconds_to_the_end(group: RunGroup) -> ColumnOf[Contender]:
    """The seconds of all steps. They depend on no target, and so on no evaluation."""

    def entry(contender: Contender) -> Entry:
        found = contender.trained()
        return Entry(text=with_interval(found, number), value=_without_reached(found))

    return column(f"{group.clock}_to_the_end", "seconds to the end", entry)


def _range(contender: Contender) -> Entry:
    """The largest errors of the replayed seconds, below and above, over the runs of the row."""
    if contender.known_range is None:
        return NOTHING
    low, high = (100 * (end - 1) for end in contender.known_range)
    return Entry(text=contender.known_percent, value={"low": low, "high": high})


def _stalled(contender: Contender) -> Entry:
    most = max((run.stalled_s for run in contender.runs), default=0.0)
    return Entry(text=f"up to {number(most)}", value=most) if most else NOTHING


def _final(contender: Contender) -> Entry:
    found = seed_median(contender.finals().values())
    return Entry(text=with_interval(found, metric_value), value=_without_reached(found))


def _megabytes(name: str, contender: Contender) -> Entry:
    values = [value / _MEGA for value in contender.result(name)]
    if not values:
        return NOTHING
    found = seed_median(values)
    return Entry(text=number(found.median), value=_without_reached(found))


def _without_reached(found: SeedMedian) -> dict[str, Scalar]:
    return {name: value for name, value in machine_value(found).items() if name in ("median", "low", "high")}


def _speed_up(group: RunGroup, baseline: str, targets: Sequence[Target] | None, contender: Contender) -> Entry:
    rows = baseline_rows(group, baseline, contender.nodes)
    if contender in rows:
        return Entry(text="baseline", value=None)
    pairing = pair(group, baseline, contender, targets)
    if pairing is None:
        return NOTHING
    ratio = pairing.found.ratio
    rough = any(row.from_start(pairing.target.level) for row in (contender, pairing.against))
    times = f"{ROUGH if rough else ''}{number(ratio.median)}×{interval(ratio, number)}" if ratio else ""
    text = times or "> budget"
    over = f" over {pairing.against.name}" if len(rows) > 1 else ""
    reached, pairs = pairing.found.baseline_reached, pairing.found.pairs
    some = f" ({pairing.against.name} reached it with {reached} of {pairs} seeds)" if reached and not ratio else ""
    to = "" if targets is not None else f" to {pairing.target.short}"
    return Entry(text=f"{text}{to}{over}{some}", value=_speed_up_value(pairing))


def _speed_up_value(pairing: Pairing) -> dict[str, Scalar]:
    found, target = pairing.found, pairing.target
    ratio = found.ratio
    return {
        "ratio": ratio.median if ratio else None,
        "low": finite(ratio.low) if ratio else None,
        "high": finite(ratio.high) if ratio else None,
        "to": target.level,
        **({} if target.share is None else {"to_share_of_best": target.share}),
        "pairs": found.pairs,
        "baseline_missed": found.baseline_missed,
        "baseline_reached": found.baseline_reached,
        "over": pairing.against.label,
        "equal_settings": pairing.equal,
    }


EXTRAPOLATED = column("extrapolated_from_nodes", "extrapolated", _extrapolated, optional=True)
_STALLED = column("stalled_s", "s in stalls", _stalled, optional=True)
RANGE = column("range_percent", "range of the seconds %", _range, optional=True)
