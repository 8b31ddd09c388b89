"""Learning curves, and the time to reach a level on them."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from istbench.results.events import Evaluation, Event, Resume, Start

Clock = Literal["train_s", "wall_s", "cluster_s"]
"""train_s and wall_s are measured during the run; cluster_s comes from a replay on a cluster."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A run's evaluations, by rising step, on one clock.

    Attributes:
        metric: name of the metric that levels refer to; higher is better.
        clock: clock of the seconds. seconds: the time of each evaluation on that clock.
    """

    metric: str
    evaluations: tuple[Evaluation, ...]
    clock: Clock
    seconds: tuple[float, ...]

    @classmethod
    def from_events(cls, events: Iterable[Event], metric: str) -> "Curve":
        """The curve of a run's events on train_s. A run that resumed at step s has lost its evaluations after s."""
        kept: list[Evaluation] = []
        for event in events:
            if isinstance(event, Start):
                kept = []
            elif isinstance(event, Resume):
                kept = [before for before in kept if before.step <= event.step]
            elif isinstance(event, Evaluation):
                kept = [*(before for before in kept if before.step < event.step), event]
        seconds = tuple(evaluation.train_s for evaluation in kept)
        return cls(metric=metric, evaluations=tuple(kept), clock="train_s", seconds=seconds)

    def on_clock(self, clock: Clock, seconds: Iterable[float]) -> "Curve":
        """The same evaluations at other times: `seconds` has one for each."""
        return dataclasses.replace(self, clock=clock, seconds=tuple(seconds))

    @property
    def values(self) -> tuple[float | None, ...]:
        """The metric at each evaluation; None if it is missing or not a number."""
        return tuple(evaluation.metrics.get(self.metric) for evaluation in self.evaluations)

    def best(self) -> float | None:
        """The highest value of the metric; None if no evaluation gave a number."""
        return max((value for value in self.values if value is not None), default=None)

    def final(self) -> float | None:
        """The metric at the last evaluation; None without evaluations, or if it is not a number."""
        return self.values[-1] if self.evaluations else None


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The point at which a curve reaches a level: the interpolated local step and seconds.

    from_start: whether it is interpolated from step 0, because no evaluation lies between the start and this point.
    """

    level: float
    step: float
    seconds: float
    from_start: bool = False


def time_to_target(curve: Curve, level: float) -> Reached | None:
    """The first evaluation at or above `level`, linearly interpolated from the one before; None for a miss.

    An evaluation without a number never reaches a level. After such an evaluation there is no interpolation: the
    time of the next one counts, which can only be too late.
    """
    before: tuple[float | None, Evaluation, float] | None = None
    for value, evaluation, seconds in zip(curve.values, curve.evaluations, curve.seconds, strict=True):
        if value is not None and value >= level:
            step, from_start = float(evaluation.step), False
            if before is not None and before[0] is not None:
                share = (level - before[0]) / (value - before[0])
                step = before[1].step + share * (step - before[1].step)
                seconds = before[2] + share * (seconds - before[2])
                from_start = before[1].step == 0
            return Reached(level=level, step=step, seconds=seconds, from_start=from_start)
        before = (value, evaluation, seconds)
    return None
