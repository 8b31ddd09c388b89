"""A learning curve whose values are better if higher: losses change their sign."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from istbench.cluster.trace import Floats
from istbench.results.curves import Curve
from istbench.results.events import Evaluation


def continued(before: Curve, last: Curve, target: float | None) -> Curve:
    """`last` with the evaluations of `before`, two runs of the same training.

    Without those at the target: `last` tells the step of it, or that a chance evaluation of `before` was there.
    """
    metric = last.metric
    known = zip(before.evaluations, before.values, strict=True)
    by_step = {one.step: one for one, value in known if target is None or not metric.reached(value, target)}
    by_step |= {one.step: one for one in last.evaluations}
    return _with(last, [by_step[step] for step in sorted(by_step)])


def ends_of(curve: Curve) -> Curve:
    """`curve` with its first and last evaluation alone: all that a run with a schedule tells of longer ones."""
    return _with(curve, [*curve.evaluations[:1], *curve.evaluations[1:][-1:]])


def _with(curve: Curve, evaluations: Sequence[Evaluation]) -> Curve:
    seconds = tuple(one.train_s for one in evaluations)
    return dataclasses.replace(curve, evaluations=tuple(evaluations), seconds=seconds)


@dataclass(frozen=True)
class SignedCurve:
    """The evaluations of a curve after step 0 that have a number.

    Attributes:
        steps: rising [points]. values: higher is better [points].
        start: the value at step 0; None if it has none.
    """

    steps: Floats
    values: Floats
    start: float | None

    @classmethod
    def of(cls, curve: Curve) -> "SignedCurve":
        """The evaluations of `curve`."""
        points = [
            (evaluation.step, curve.metric.signed(value))
            for evaluation, value in zip(curve.evaluations, curve.values, strict=True)
            if value is not None and math.isfinite(value)
        ]
        start = points[0][1] if points and not points[0][0] else None
        after = np.array([point for point in points if point[0]], dtype=float).reshape(-1, 2)
        return cls(steps=after[:, 0], values=after[:, 1], start=start)

    @property
    def last(self) -> float:
        """The last step; 0 without points."""
        return float(self.steps[-1]) if len(self.steps) else 0.0

    @cached_property
    def best(self) -> Floats:
        """The best value up to each point [points]."""
        return np.maximum.accumulate(self.values)

    @cached_property
    def noise(self) -> float:
        """The spread of an evaluation, by what each loses to the one before; 0 of a curve that never falls."""
        lost = np.minimum(np.diff(self.values), 0.0)
        return float(np.sqrt(np.mean(lost**2))) if len(lost) else 0.0

    def steps_at(self, values: Floats, side: Literal["left", "right"] = "left") -> Floats:
        """The first step whose best value so far is each of `values`; infinite if none is, 0 if the start is.

        Between two points the value is linear in the log of the step; up to the first one, in its root.
        side: `right` for the last step, where the curve stays at a value.
        """
        if not len(self.steps):
            return np.full(np.shape(values), math.inf)
        after = np.searchsorted(self.best, values, side)
        low, high = np.maximum(after - 1, 0), np.minimum(after, len(self.steps) - 1)
        start = math.inf if self.start is None else self.start
        with np.errstate(all="ignore"):
            share = np.where(low < high, (values - self.best[low]) / (self.best[high] - self.best[low]), 0.0)
            between = self.steps[low] ** (1 - share) * self.steps[high] ** share
            begun = self.steps[0] * ((values - start) / (self.best[0] - start)) ** 2
        found = np.where(after > 0, between, np.where(values > start, begun, 0.0))
        return np.where(values > self.best[-1], math.inf, found)
