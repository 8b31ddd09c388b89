"""A row's time to a target, and whether the times of two rows are too close to call."""

from collections.abc import Iterable
from dataclasses import dataclass

from istbench.report.groups import Contender
from istbench.report.phrases import largest_error
from istbench.report.tables.numbers import interval, number
from istbench.report.targets import Target
from istbench.results.load import Run
from istbench.results.stats import Estimate


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
        return f"{self.contender.placed}{' (never run)' if never_run else ''}"

    @property
    def time(self) -> str:
        """`12.3 s [11.9–12.8]`."""
        return f"{number(self.seconds.median)} s{interval(self.seconds, number)}"

    @property
    def seeds(self) -> str:
        """`3 of 3 seeds`."""
        return f"{self.seconds.reached} of {self.seconds.seeds} seed{'s' if self.seconds.seeds > 1 else ''}"

    @property
    def known(self) -> str:
        """`-5 to +28 %`: how far its replayed seconds are known; empty if no range is."""
        found = self.contender.known_range
        return "" if found is None else " to ".join(f"{100 * (end - 1):+.0f}" for end in found) + " %"

    def overlaps(self, slower: "RowTime") -> bool:
        """As `ranges_overlap`."""
        return ranges_overlap(self.seconds, self.error, slower.seconds, slower.error)


def row_time(contender: Contender, target: Target) -> RowTime:
    """The time of `contender` to `target`."""
    return RowTime(
        contender=contender,
        seconds=contender.time(target.level),
        error=replay_error(contender.runs),
    )


def replay_error(runs: Iterable[Run]) -> float:
    """The largest error of replays of the methods of `runs` in a lab, as a share; 0 if unknown or not replayed."""
    return largest_error(run.cluster for run in runs if run.cluster is not None)


def ranges_overlap(faster: Estimate, error: float, slower: Estimate, slower_error: float) -> bool:
    """Whether the ranges over seeds of two times overlap, each first widened by the error of its replays."""
    return slower.low * (1 - min(slower_error, 1)) <= faster.high * (1 + error)
