"""Learning curves, and the time to reach a level on them."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from istbench.results.events import Evaluation, Event, Resume, Start

Clock = Literal["train_s", "wall_s", "cluster_s"]
"""train_s and wall_s were measured where the run ran; cluster_s is of a replay on a cluster."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A run's evaluations, by rising step, on one clock.

    Attributes:
        metric: name of the one that levels refer to, higher is better.
        clock: what the seconds are. seconds: by that clock, of each evaluation.
    """

    metric: str
    evaluations: tuple[Evaluation, ...]
    clock: Clock
    seconds: tuple[float, ...]

    @classmethod
    def from_events(cls, events: Iterable[Event], metric: str) -> "Curve":
        """What counts of a run's events, on train_s: a run that resumed at step s has lost what it evaluated
        after s."""
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
        """The same evaluations at other times, one of `seconds` for each."""
        return dataclasses.replace(self, clock=clock, seconds=tuple(seconds))

    @property
    def values(self) -> tuple[float | None, ...]:
        """The metric at each evaluation; None where it is missing or was not a number."""
        return tuple(evaluation.metrics.get(self.metric) for evaluation in self.evaluations)

    def best(self) -> float | None:
        """The highest value of the metric; None where no evaluation gave a number."""
        return max((value for value in self.values if value is not None), default=None)

    def final(self) -> float | None:
        """The metric at the last evaluation; None where there is none, or it gave no number."""
        return self.values[-1] if self.evaluations else None


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where a curve reaches a level: the interpolated local step and seconds.

    from_start: whether it is interpolated from step 0, as no evaluation lies between the start and the crossing.
    """

    level: float
    step: float
    seconds: float
    from_start: bool = False


def time_to_target(curve: Curve, level: float) -> Reached | None:
    """The first evaluation at or above `level`, linearly interpolated from the one before; None for a miss.

    An evaluation that gave no number never reaches; nor is interpolated from one: then the evaluation that
    reached is taken as it is, which can only be too late.
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
