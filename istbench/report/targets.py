"""Targets of a report: the levels of the metric to which it gives the time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from istbench.results.load import Run
from istbench.results.metrics import Metric, level_text, value_text

SHORT_OF_BEST = (0.1, 0.05, 0.02)
"""Distances from the best final metric, as shares of its size: the targets if nobody names a level."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A level of the metric. share: the level over the best final metric; None for a fixed level."""

    level: float
    share: float | None = None

    @property
    def short(self) -> str:
        """`0.77`, `90 % of best`."""
        return level_text(self.level) if self.share is None else f"{100 * self.share:.0f} % of best"

    @property
    def text(self) -> str:
        """`0.77`, `90 % of best (0.612)`."""
        return self.short if self.share is None else f"{self.short} ({self.level_text})"

    @property
    def level_text(self) -> str:
        return level_text(self.level) if self.share is None else value_text(self.level)

    @property
    def key(self) -> str:
        """A name for programs that does not depend on the best metric: `0.77`, `0.9_of_best`."""
        return level_text(self.level) if self.share is None else f"{self.share:g}_of_best"

    def of(self, metric: Metric) -> str:
        """`accuracy 0.77`, `90 % of best accuracy (0.612)`."""
        name = metric.name
        return f"{name} {self.short}" if self.share is None else f"{self.short} {name} ({self.level_text})"


@dataclass(frozen=True, kw_only=True)
class EvaluationError:
    """The standard error of an evaluation of the metric on `samples` samples.

    recorded: the error that the workload recorded; None for the mean of values from 0 to 1.
    """

    samples: int
    recorded: float | None = None

    def at(self, level: float) -> float:
        """The standard error at `level` of the metric. That of a mean p is at most sqrt(p (1 - p) / samples)."""
        return math.sqrt(level * (1 - level) / self.samples) if self.recorded is None else self.recorded


def evaluation_error(runs: Sequence[Run], targets: Sequence[Target]) -> EvaluationError | None:
    """The standard error of evaluations of `runs`, which share a table with `targets`; None if it is unknown.

    It is the largest that the last evaluations recorded. Without a record it is known for shares of the samples,
    such as an accuracy.
    """
    if not runs:
        return None
    metric, samples = runs[0].curve.metric, runs[0].header.data_source.test
    last = [run.curve.evaluations[-1].metrics.get(metric.error_name) for run in runs]
    recorded = [error for error in last if error is not None and error >= 0]
    if recorded:
        return EvaluationError(samples=samples, recorded=max(recorded))
    values = [value for run in runs for value in run.curve.values if value is not None]
    levels = [target.level for target in targets]
    if metric.may_be_share and samples and all(0 <= value <= 1 for value in (*values, *levels)):
        return EvaluationError(samples=samples)
    return None


def close_targets(targets: Sequence[Target], error: EvaluationError | None) -> list[list[Target]]:
    """Runs of at least two neighbouring `targets`, each within two standard errors of the next; none if unknown."""
    runs: list[list[Target]] = []
    if error is None:
        return runs
    for one, other in pairwise(targets):
        if abs(other.level - one.level) >= 2 * max(error.at(one.level), error.at(other.level)):
            continue
        if runs and runs[-1][-1] is one:
            runs[-1].append(other)
        else:
            runs.append([one, other])
    return runs


def resolve_targets(runs: Sequence[Run]) -> tuple[Target, ...]:
    """The targets of finished `runs` that share a table, the easiest first.

    They are the levels of the workload and of `--target`. Without any, they lie 10, 5 and 2 % of the best final
    metric short of it: at 90 % of an accuracy, and at 110 % of a loss. Data that no model can learn from has none.
    """
    if not runs:
        return ()
    metric = runs[0].curve.metric
    levels = metric.easiest_first(level for run in runs for level in run.targets)
    if levels:
        return tuple(Target(level=level) for level in levels)
    best = best_final(runs)
    if not best or any(not run.header.data_source.learnable for run in runs):
        return ()
    shares = [1 - short if metric.better(best, 0) else 1 + short for short in SHORT_OF_BEST]
    return tuple(Target(level=share * best, share=share) for share in shares if math.isfinite(share * best))


def best_final(runs: Sequence[Run]) -> float | None:
    """The best final metric of `runs`; None if none has a number."""
    return runs[0].curve.metric.best(run.curve.final() for run in runs) if runs else None
