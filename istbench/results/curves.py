"""Learning curves, and the time to reach a level on them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Clock = Literal["train_s", "wall_s"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation of the assembled model.

    step: local steps done; samples: training samples seen by all nodes together.
    train_s, wall_s: the two clocks, in seconds; evaluate_s, assemble_s: what this
    evaluation took off the clock.
    bytes_sent_per_node, bytes_received_per_node: training traffic of the busiest node since the start.
    train_loss: mean since the evaluation before; None at the start and where it was not a number.
    metrics: by name; NaN where it was not a number.
    """

    step: int
    samples: int
    train_s: float
    wall_s: float
    evaluate_s: float
    assemble_s: float
    bytes_sent_per_node: float
    bytes_received_per_node: float
    train_loss: float | None
    metrics: Mapping[str, float]

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> "Evaluation":
        """From a line of events.jsonl.

        Raises:
            KeyError: naming a field that the event lacks.
        """
        return cls(**{name: event[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A run's evaluations, by rising step. metric: name of the one that levels refer to, higher is better."""

    metric: str
    evaluations: tuple[Evaluation, ...]

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]], metric: str) -> "Curve":
        """What counts of a run's events: a run that resumed at step s has lost what it evaluated after s.

        Raises:
            KeyError: naming a field that an event lacks.
        """
        kept: list[Evaluation] = []
        for event in events:
            if event["event"] == "start":
                kept = []
            elif event["event"] == "resume":
                kept = [before for before in kept if before.step <= event["step"]]
            elif event["event"] == "evaluation":
                new = Evaluation.from_event(event)
                kept = [*(before for before in kept if before.step < new.step), new]
        return cls(metric=metric, evaluations=tuple(kept))

    @property
    def values(self) -> tuple[float, ...]:
        """The metric at each evaluation; NaN where it is missing or was not a number."""
        return tuple(evaluation.metrics.get(self.metric, math.nan) for evaluation in self.evaluations)

    def seconds(self, clock: Clock = "train_s") -> tuple[float, ...]:
        """`clock` at each evaluation."""
        return tuple(_read(evaluation, clock) for evaluation in self.evaluations)

    def best(self) -> float:
        """The highest value of the metric; NaN where no evaluation gave a number."""
        return max((value for value in self.values if not math.isnan(value)), default=math.nan)

    def final(self) -> float:
        """The metric at the last evaluation; NaN where there is none."""
        return self.values[-1] if self.evaluations else math.nan


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where a curve reaches a level: the interpolated local step and seconds."""

    level: float
    step: float
    seconds: float


def time_to_target(curve: Curve, level: float, clock: Clock = "train_s") -> Reached | None:
    """The first evaluation at or above `level`, linearly interpolated from the one before; None for a miss.

    An evaluation that gave no number never reaches; nor is interpolated from one: then the evaluation that
    reached is taken as it is, which can only be too late.
    """
    before: tuple[float, Evaluation] | None = None
    for value, evaluation in zip(curve.values, curve.evaluations, strict=True):
        if value >= level:
            step, seconds = float(evaluation.step), _read(evaluation, clock)
            if before is not None and not math.isnan(before[0]):
                share = (level - before[0]) / (value - before[0])
                step = before[1].step + share * (step - before[1].step)
                seconds = _read(before[1], clock) + share * (seconds - _read(before[1], clock))
            return Reached(level=level, step=step, seconds=seconds)
        before = (value, evaluation)
    return None


def _read(evaluation: Evaluation, clock: Clock) -> float:
    return evaluation.train_s if clock == "train_s" else evaluation.wall_s
