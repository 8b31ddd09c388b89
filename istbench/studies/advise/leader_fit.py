"""The fit of a learning curve to another that is further, its leader."""

import math
from dataclasses import dataclass

import numpy as np

from istbench.cluster.trace import Floats
from istbench.studies.advise.power_law import FURTHEST
from istbench.studies.advise.signed_curve import SignedCurve

Place = tuple[str, int]
"""A curve, by the label of its candidate and its seed."""

_SLOPES, _LEAST_SLOPE = 0.2, 0.02  # spread of slopes, before any evaluation tells one
_NOISE, _PRIOR_POINTS = 0.1, 2.0  # of the log of a leader's step by one evaluation, before others tell it
_PACES = 0.4  # spread of the log of a method's steps to a value over another's: scripts/bench/extrapolated_steps.py
# scripts/bench/extrapolated_steps.py: how often true steps lie in the ranges that these two give.
_SCALE = 0.15  # spread of the log of the steps at the end of a probe
_DRIFT = 0.2  # and of how much further it goes


@dataclass(frozen=True)
class LeaderFit:
    """The steps of a curve relative to those of its leader.

    Attributes:
        leader: its place. there: the step of the leader with the value of the follower at its last step.
        last: that step of the follower.
        slope: change of the log of the leader's step over that of the log of the follower's. It is 1 for two curves
            of one shape, less if the follower falls behind, and near 0 if it no longer learns.
        noise: the spread of an evaluation of both.
        spread: of the log of `there`, since noise moves a value along the leader, far where that is flat.
    """

    leader: Place
    there: float
    last: float
    slope: float
    noise: float
    spread: float

    @classmethod
    def of(cls, mine: SignedCurve, theirs: SignedCurve, leader: Place) -> "LeaderFit | None":
        """The fit of `mine` to `theirs`; None if the two have no value in common."""
        first, left = theirs.steps_at(mine.best), theirs.steps_at(mine.best, "right")
        if not len(left) or not 0 < left[-1] < math.inf:
            return None
        # Where the leader stays at a value, both take equal steps if they can. Its first evaluation may be late.
        there = np.clip(mine.steps, np.where(mine.best == theirs.best[0], 0.0, first), left)
        # Up to its first evaluation, the leader's steps are a guess.
        known = there >= min(there[-1], theirs.steps[0])
        now, slope = _line(np.log(mine.steps[known] / mine.last), np.log(there[known]))
        noise = math.hypot(mine.noise, theirs.noise)
        early = float(theirs.steps_at(mine.best[-1] - noise))
        late = float(theirs.steps_at(mine.best[-1] + noise, "right"))
        return cls(
            leader=leader,
            there=math.exp(now),
            last=mine.last,
            slope=max(slope, _LEAST_SLOPE),
            noise=noise,
            spread=min(_PACES, math.log(min(late, theirs.last) / max(early, min(there[-1], theirs.steps[0]))) / 2),
        )

    def steps(self, steps: Floats, doubt: Floats) -> Floats:
        """Draws of the follower's steps, where the leader takes `steps` [draws]. doubt: standard normal numbers."""
        finite = np.isfinite(steps)
        further = np.log(np.where(finite, np.maximum(steps, 1.0), self.there) / self.there) / self.slope
        spread = np.hypot(np.hypot(_SCALE, self.spread / self.slope), _DRIFT * further)
        with np.errstate(over="ignore"):
            found = self.last * np.exp(further + doubt * spread)
        return np.where(finite & (found <= FURTHEST * np.maximum(steps, self.last)), found, math.inf)


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """The value at 0 and the slope of a line through `y` at `x`, whose slope is 1 unless the points tell another.

    x: logs, at most 0. Points near 0 weigh more: by their numbers, not the logs.
    """
    weights, design = np.exp(x), np.stack([np.ones_like(x), x], axis=1)
    gram, moments = (weights[:, None] * design).T @ design, (weights * y) @ design
    residuals = y - design @ (np.linalg.pinv(gram) @ moments)
    noise = (weights @ residuals**2 + _PRIOR_POINTS * _NOISE**2) / (weights.sum() + _PRIOR_POINTS)
    prior = np.diag([0.0, noise / _SLOPES**2])
    now, slope = np.linalg.solve(gram + prior, moments + prior @ [0.0, 1.0]).tolist()
    return now, slope
