"""Learning curves, and the time to reach a level on them."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from istbench.results.events import Evaluation, Event, counted
from istbench.results.metrics import Metric

Clock = Literal["train_s", "wall_s", "cluster_s"]
"""train_s and wall_s are measured during the run; cluster_s comes from a replay on a cluster."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A run's evaluations, by rising step, on one clock.

    Attributes:
        metric: the metric that levels refer to.
        clock: clock of the seconds. seconds: the time of each evaluation on that clock.
    """

    metric: Metric
    evaluations: tuple[Evaluation, ...]
    clock: Clock
    seconds: tuple[float, ...]

    @classmethod
    def from_events(cls, events: Iterable[Event], metric: Metric) -> "Curve":
        """The curve of a run's events on train_s. Of two evaluations of a step, the later one counts."""
        kept: list[Evaluation] = []
        for event in counted(events):
            if isinstance(event, Evaluation):
                while kept and kept[-1].step >= event.step:
                    kept.pop()
                kept.append(event)
        seconds = tuple(evaluation.train_s for evaluation in kept)
        return cls(metric=metric, evaluations=tuple(kept), clock="train_s", seconds=seconds)

    def on_clock(self, clock: Clock, seconds: Iterable[float]) -> "Curve":
        """The same evaluations at other times: `seconds` has one for each."""
        return dataclasses.replace(self, clock=clock, seconds=tuple(seconds))

    def on_metric(self, metric: Metric) -> "Curve":
        """The same evaluations, by another of their metrics."""
        return dataclasses.replace(self, metric=metric)

    @cached_property
    def values(self) -> tuple[float | None, ...]:
        """The metric at each evaluation; None if it is missing or not a number."""
        return tuple(evaluation.metrics.get(self.metric.name) for evaluation in self.evaluations)

    @cached_property
    def _reached(self) -> "dict[float, Reached | None]":
        """By level, the point at which the curve reaches it: tables, answers and charts ask for the same levels."""
        return {}

    def reached(self, level: float) -> "Reached | None":
        """The first evaluation at `level` or better, linearly interpolated from the one before; None for a miss."""
        if level not in self._reached:
            self._reached[level] = time_to_target(self, level)
        return self._reached[level]

    def best(self) -> float | None:
        """The best value of the metric; None if no evaluation gave a number."""
        return self.metric.best(self.values)

    def final(self) -> float | None:
        """The metric at the last evaluation; None without evaluations, or if it is not a number."""
        return self.values[-1] if self.evaluations else None


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The point at which a curve reaches a level: the interpolated local step, seconds and bytes sent.

    from_start: whether it is interpolated from step 0, because no evaluation lies between the start and this point.
    """

    step: float
    seconds: float
    bytes_sent_per_node: float
    from_start: bool = False


def time_to_target(curve: Curve, level: float) -> Reached | None:
    """The first evaluation at `level` or better, linearly interpolated from the one before; None for a miss.

    An evaluation without a number never reaches a level. After such an evaluation there is no interpolation: the
    time of the next one counts, which can only be too late.
    """
    before: tuple[float | None, Evaluation, float] | None = None
    for value, evaluation, seconds in zip(curve.values, curve.evaluations, curve.seconds, strict=True):
        if value is not None and curve.metric.reached(value, level):
            step, sent, from_start = float(evaluation.step), float(evaluation.bytes_sent_per_node), False
            if before is not None and before[0] is not None:
                share = _share_of_way(before[0], value, level)
                step = before[1].step + share * (step - before[1].step)
                seconds = before[2] + share * (seconds - before[2])
                sent = before[1].bytes_sent_per_node + share * (sent - before[1].bytes_sent_per_node)
                from_start = before[1].step == 0
            return Reached(step=step, seconds=seconds, bytes_sent_per_node=sent, from_start=from_start)
        before = (value, evaluation, seconds)
    return None


def _share_of_way(start: float, end: float, level: float) -> float:
    """The place of `level` on the way from `start` to `end`, 0 to 1."""
    way = end - start
    # Halves of numbers as large as these lose nothing.
    return (level - start) / way if math.isfinite(way) else (level / 2 - start / 2) / (end / 2 - start / 2)
