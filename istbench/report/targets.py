"""Targets of a report: the levels of the metric to which it gives the time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from istbench.results.load import Run

SHARES = (0.9, 0.95, 0.98)
"""Shares of the best final metric, used if neither the workload nor the user names a level."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A level of the metric. share: its share of the best final metric; None for a fixed level."""

    level: float
    share: float | None = None

    @property
    def short(self) -> str:
        """`0.77`, `90 % of best`."""
        return f"{self.level:g}" if self.share is None else f"{self.share:.0%} of best".replace("%", " %")

    @property
    def text(self) -> str:
        """`0.77`, `90 % of best (0.612)`."""
        return self.short if self.share is None else f"{self.short} ({self.level_text})"

    @property
    def level_text(self) -> str:
        """`0.77`, `0.612`."""
        return f"{self.level:g}" if self.share is None else f"{self.level:.3f}"

    @property
    def key(self) -> str:
        """A name for programs that does not depend on the best metric: `0.77`, `0.9_of_best`."""
        return f"{self.level:g}" if self.share is None else f"{self.share:g}_of_best"

    def of(self, metric: str) -> str:
        """`accuracy 0.77`, `90 % of best accuracy (0.612)`."""
        return f"{metric} {self.short}" if self.share is None else f"{self.short} {metric} ({self.level_text})"


def close_targets(targets: Sequence[Target], samples: int) -> list[list[Target]]:
    """Runs of at least two neighbouring `targets` (rising), each within two standard errors of the next.

    The standard error of a mean p over `samples` evaluated samples, of values from 0 to 1, is at most
    sqrt(p (1 - p) / samples). None are close if `samples` is 0 or the metric is no such mean.
    """
    if not samples or not all(0 <= target.level <= 1 for target in targets):
        return []
    runs: list[list[Target]] = []
    for lower, higher in pairwise(targets):
        error = max(standard_error(target.level, samples) for target in (lower, higher))
        if higher.level - lower.level >= 2 * error:
            continue
        if runs and runs[-1][-1] is lower:
            runs[-1].append(higher)
        else:
            runs.append([lower, higher])
    return runs


def standard_error(level: float, samples: int) -> float:
    """The largest standard error of a mean `level` of `samples` values from 0 to 1."""
    return math.sqrt(level * (1 - level) / samples)


def resolve_targets(runs: Sequence[Run]) -> tuple[Target, ...]:
    """The targets of finished `runs` that share a table, rising.

    They are the levels of the workload and of `--target`. Without any, they are shares of the best final metric of
    the runs. Synthetic data has no such shares: workloads without levels have it for throughput alone.
    """
    levels = sorted({level for run in runs for level in run.targets})
    if levels:
        return tuple(Target(level=level) for level in levels)
    best = best_final(runs)
    if best is None or any(run.header.data == "synthetic" for run in runs):
        return ()
    return tuple(Target(level=share * best, share=share) for share in SHARES)


def best_final(runs: Sequence[Run]) -> float | None:
    """The highest final metric of `runs`; None if none is above zero."""
    finals = [run.curve.final() for run in runs]
    return max((final for final in finals if final is not None and final > 0), default=None)
