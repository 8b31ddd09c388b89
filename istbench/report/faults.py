"""A table of a group on the clock of a cluster: the seconds to a target if nodes fail."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from istbench.base.options.defaults import BASELINE
from istbench.cluster.faults import DRAWS, Faults, with_faults
from istbench.report.answer import main_target
from istbench.report.groups import Contender, RunGroup
from istbench.report.phrases import Lead, fault_words, guide_line
from istbench.report.tables.comparison import seconds_to
from istbench.report.tables.group_columns import group_table
from istbench.report.tables.numbers import finite, number, of_hundred, rounded
from istbench.report.tables.table import NOTHING, ColumnOf, Entry, Table, column
from istbench.report.targets import Target

_LOW, _HIGH = 5, 95


def faults_table(group: RunGroup, faults: Faults, baseline: str = BASELINE) -> Table | None:
    """The seconds to the main target of `group` with `faults`, over its seeds and many schedules of faults.

    None without a target. `group` must be on the clock of a cluster.

    Raises:
        UserError: as `with_faults` does.
    """
    target = main_target(group)
    if target is None:
        return None
    figures = {(row.label, row.nodes): _figures(row, target, faults) for row in group.contenders}

    def of(key: str, title: str) -> ColumnOf[Contender]:
        return column(key, title, lambda row: figures[row.label, row.nodes].get(key))

    return group_table(
        group,
        baseline,
        [
            seconds_to(group, target),
            of("faulty_s", "with faults, s"),
            of("times_fault_free", "times as long"),
            of("lost_percent", "computing lost %"),
            of("restarting_percent", "restarting %"),
        ],
        group.contenders,
        title=f"{group.workload_label}: seconds to {target.of(group.metric)} with faults on {group.machine}",
        footer=(
            Lead(
                f"Faults: simulated, {fault_words(faults)} Brackets: {_LOW} to {_HIGH} % of all schedules of "
                "faults and seeds; the other columns are means of seeds that reach the target."
            ),
            guide_line("faults.md#faults"),
        ),
    )


def _figures(contender: Contender, target: Target, faults: Faults) -> dict[str, Entry]:
    """The entries of `contender` by column: seconds over all seeds, the others over those that reach `target`.

    Nothing if none does.
    """
    seconds = contender.seconds(target.level)
    reached = [run for run in contender.runs if math.isfinite(seconds[run.header.seed])]
    if not reached:
        return {}
    found = [
        with_faults(run.curve.seconds, seconds[run.header.seed], contender.nodes, faults, seed=run.header.seed)
        for run in reached
    ]
    whole = np.concatenate([times.seconds for times in found])
    kept_s = sum(times.kept_s for times in found) / len(found)
    missed = contender.seeds - len(reached)
    counted = np.concatenate([whole, np.full(missed * DRAWS, math.inf)])
    low, middle, high = np.percentile(counted, (_LOW, 50, _HIGH), method="higher").tolist()
    count = f" {len(reached)}/{contender.seeds}" if missed else ""
    return {
        "faulty_s": Entry(
            text=f"{number(middle)} [{number(low)}–{number(high)}]{count}",
            value={"median": finite(middle), "low": finite(low), "high": finite(high)},
        ),
        "times_fault_free": rounded(float(whole.mean()) / kept_s) if kept_s else NOTHING,
        "lost_percent": _percent([times.lost_s for times in found], whole),
        "restarting_percent": _percent([times.restarting_s for times in found], whole),
    }


def _percent(parts: Sequence[NDArray[np.float64]], whole: NDArray[np.float64]) -> Entry:
    """The share of `parts`, an array for each seed, in the mean of `whole`."""
    mean = float(whole.mean())
    return of_hundred(float(np.mean(parts)) / mean if mean else 0.0)
