"""The levels of the metric that a report gives the time to."""

from collections.abc import Sequence
from dataclasses import dataclass

from istbench.results.load import Run

SHARES = (0.9, 0.95, 0.98)
"""Of the best final metric, where neither the workload nor the user names a level."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A level of the metric; share: what of the best final metric it is, None where it stands for itself."""

    level: float
    share: float | None = None

    @property
    def short(self) -> str:
        """`0.77`, `90 % of best`."""
        return f"{self.level:g}" if self.share is None else f"{self.share:.0%} of best".replace("%", " %")

    @property
    def text(self) -> str:
        """`0.77`, `90 % of best (0.612)`."""
        return self.short if self.share is None else f"{self.short} ({self.level:.3f})"

    @property
    def key(self) -> str:
        """For programs, the same whatever the best is: `0.77`, `0.9_of_best`."""
        return f"{self.level:g}" if self.share is None else f"{self.share:g}_of_best"

    def of(self, metric: str) -> str:
        """`accuracy 0.77`, `90 % of best accuracy (0.612)`."""
        return f"{metric} {self.short}" if self.share is None else f"{self.short} {metric} ({self.level:.3f})"


def resolve_targets(runs: Sequence[Run]) -> tuple[Target, ...]:
    """The targets of finished `runs` that share a table, rising.

    They are the workload's and the ones that runs were to stop at. Where there are none of either, they are shares
    of the best final metric among the runs; but of synthetic data, which workloads without levels have for
    throughput alone, there are none.
    """
    levels = sorted({level for run in runs for level in run.targets})
    if levels:
        return tuple(Target(level=level) for level in levels)
    best = best_final(runs)
    if best is None or any(run.header.data == "synthetic" for run in runs):
        return ()
    return tuple(Target(level=share * best, share=share) for share in SHARES)


def best_final(runs: Sequence[Run]) -> float | None:
    """The highest final metric among `runs`; None where none is above zero."""
    finals = [run.curve.final() for run in runs]
    return max((final for final in finals if final is not None and final > 0), default=None)
