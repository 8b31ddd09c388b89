"""A row's time to a target, and whether the times of two rows are too close to call."""

from dataclasses import dataclass

from istbench.report.groups import Contender
from istbench.report.phrases import count_nodes
from istbench.report.tables.numbers import interval, number
from istbench.report.targets import Target
from istbench.results.stats import Estimate, estimate


@dataclass(frozen=True, kw_only=True)
class RowTime:
    """A row's time to a target.

    seconds: over its seeds. error: the largest of its replays in a lab, as a share; 0 if unknown or not replayed.
    """

    contender: Contender
    seconds: Estimate
    error: float

    @property
    def name(self) -> str:
        """`ist on 4 nodes`."""
        never_run = self.contender.extrapolated_from is not None
        return f"{self.contender.name} on {count_nodes(self.contender.nodes)}{' (never run)' if never_run else ''}"

    @property
    def time(self) -> str:
        """`12.3 s [11.9–12.8]`."""
        return f"{number(self.seconds.median)} s{interval(self.seconds, number)}"

    @property
    def seeds(self) -> str:
        """`3 of 3 seeds`."""
        return f"{self.seconds.reached} of {self.seconds.seeds} seed{'s' if self.seconds.seeds > 1 else ''}"

    def overlaps(self, slower: "RowTime") -> bool:
        """Whether the ranges over seeds of this row and a `slower` one overlap, each first widened by its error."""
        return slower.seconds.low * (1 - min(slower.error, 1)) <= self.seconds.high * (1 + self.error)


def row_time(contender: Contender, target: Target) -> RowTime:
    """The time of `contender` to `target`."""
    checks = [run.cluster.check for run in contender.runs if run.cluster is not None]
    known = [abs(found.check.largest) for found in checks if found is not None and found.check is not None]
    return RowTime(
        contender=contender,
        seconds=estimate(list(contender.seconds(target.level).values())),
        error=max(known, default=0.0),
    )
