"""Local steps from the start to the target: seen in a probe, or extrapolated beyond its end.

Methods of one workload learn in curves of a similar shape. A curve that is further, the leader, continues one that
ends short of the target. The leader's step of equal value is the start, and the follower keeps its speed relative
to the leader. The range widens with the distance, because two methods do not stay in step.

Leaders are the curves that reached the target. If none did, it is the one with the best value, which goes on by a
power law of its own (`power_law`).
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from istbench.base.seeds import derived_seed
from istbench.cluster.trace import Floats
from istbench.results.curves import Curve, time_to_target
from istbench.studies.advise.candidate import Candidate, is_scheduled
from istbench.studies.advise.leader_fit import LeaderFit, Place
from istbench.studies.advise.power_law import LEAST_POINTS, steps_by_law
from istbench.studies.advise.signed_curve import SignedCurve, signed

TOO_FEW = "too few evaluations to extrapolate"
"""The reason of a candidate whose curves end short of the target after a single evaluation, with none to follow."""


@dataclass(frozen=True, kw_only=True)
class StepsToTarget:
    """Local steps to a target of one candidate.

    Attributes:
        by_seed: draws for each seed [seeds, draws]; infinite where a draw never reaches it.
        extrapolated: whether the target lies beyond the probe, for each seed [seeds].
    """

    by_seed: Floats
    extrapolated: NDArray[np.bool_]

    def without_doubt(self) -> "StepsToTarget":
        """The same with the median of every extrapolation in place of its draws, as a longer probe would give."""
        middle = np.quantile(self.by_seed, 0.5, axis=1, method="lower", keepdims=True)
        return StepsToTarget(by_seed=np.broadcast_to(middle, self.by_seed.shape), extrapolated=self.extrapolated)


def judged(candidates: Sequence[Candidate], target: float) -> list[Candidate]:
    """`candidates` without the curves that tell nothing of their steps to `target`; failed if all of one do.

    Methods with long rounds may evaluate a short probe only once after step 0. Through one point goes any law, but
    it may follow a longer probe.
    """
    # Only these have draws, so others can follow no other ones.
    known = _Known([one for one in candidates if not one.why_not], target)
    return [one if one.why_not else _judged(one, known) for one in candidates]


def _judged(candidate: Candidate, known: "_Known") -> Candidate:
    telling = {seed: curve for seed, curve in candidate.curves.items() if known.tells((candidate.label, seed))}
    if telling:
        return dataclasses.replace(candidate, curves=telling)
    return dataclasses.replace(candidate, failed=TOO_FEW)


def steps_to_target(
    candidates: Sequence[Candidate], target: float, *, draws: int, seed: int
) -> dict[str, StepsToTarget]:
    """Draws of the local steps to `target` for each seed of each of `candidates`, by label."""
    known = _Known(candidates, target)
    drawing = _Drawing(known, draws, seed)
    found = {}
    for one in candidates:
        places = [(one.label, own) for own in one.curves]
        rows = [drawing.steps(place) for place in places]
        found[one.label] = StepsToTarget(
            by_seed=np.array(rows).reshape(len(rows), draws),
            extrapolated=np.array([place not in known.seen for place in places], dtype=bool),
        )
    return found


class _Known:
    """The curves of all candidates.

    Attributes:
        curves: each with higher values better. level: the target, so that higher is better.
        seen: steps to the target of the curves that reached it.
        leaders: the curves that others follow.
    """

    def __init__(self, candidates: Sequence[Candidate], target: float) -> None:
        self.curves: dict[Place, SignedCurve] = {}
        self.seen: dict[Place, float] = {}
        self.level = target
        for one in candidates:
            for seed, curve in one.curves.items():
                self._add((one.label, seed), curve, target)
        scheduled = {one.label for one in candidates if is_scheduled(one.options)}
        furthest = max(self.curves, key=self._furthest, default=None)
        # One law is wrong in the same way for all seeds of a candidate, so these share a leader's doubt.
        # Inside its run, a schedule learns as no other curve does.
        steady = [place for place in self.seen if place[0] not in scheduled]
        self.leaders = (
            steady
            or list(self.seen)
            or [
                place
                for place, curve in self.curves.items()
                if furthest and place[0] == furthest[0] and len(curve.steps) >= LEAST_POINTS
            ]
        )

    def _add(self, place: Place, curve: Curve, target: float) -> None:
        self.level = signed(target, curve.metric)
        self.curves[place] = SignedCurve.of(curve)
        there = time_to_target(curve, target)
        if there is not None:
            self.seen[place] = max(1.0, there.step)  # nobody is there before the first step

    def _furthest(self, place: Place) -> tuple[bool, float]:
        curve = self.curves[place]
        return len(curve.steps) >= LEAST_POINTS, float(curve.best[-1]) if len(curve.steps) else -math.inf

    def tells(self, place: Place) -> bool:
        """Whether a curve tells anything of its steps to the target. If it diverged: that it never gets there."""
        points = len(self.curves[place].steps)
        return place in self.seen or points != 1 or bool(self.fits(place))

    def fits(self, place: Place) -> list[LeaderFit]:
        """The fits of a curve to each leader that learned more.

        A leader whose first evaluation came after that step says little, so it counts only if all are like it.
        """
        found = (
            LeaderFit.of(self.curves[place], self.curves[other], other) for other in self.leaders if other != place
        )
        fits = [fit for fit in found if fit is not None]
        early = [fit for fit in fits if fit.there >= self.curves[fit.leader].steps[0]]
        return early or fits


class _Drawing:
    """Draws of the steps to the target of each of the `known` curves."""

    def __init__(self, known: _Known, draws: int, seed: int) -> None:
        self._known, self._draws, self._seed = known, draws, seed
        self._leaders = {place: self._by_itself(place) for place in known.leaders}
        # Draws that follow the same leader share its own doubt, which then says nothing of who is first.
        self._followed = self._random("followed").uniform(0, 1, draws)

    def _random(self, *names: object) -> np.random.Generator:
        return np.random.default_rng(derived_seed(names[0], self._seed, *names[1:]))

    def steps(self, place: Place) -> Floats:
        """Draws of the steps of the curve at `place` [draws]."""
        if place in self._leaders:
            return self._leaders[place]
        fits = self._known.fits(place)
        return self._along(place, fits) if fits else self._by_itself(place)

    def _by_itself(self, place: Place) -> Floats:
        """The draws from that curve alone [draws]."""
        if place in self._known.seen:
            return np.full(self._draws, self._known.seen[place])
        return self._by_law(place, self._known.level)

    def _by_law(self, place: Place, level: float | Floats) -> Floats:
        # One law is wrong in the same way for all seeds of a candidate.
        beyond = self._random("beyond", place[0]).standard_normal(self._draws)
        return steps_by_law(self._known.curves[place], level, beyond, self._random("reach", *place))

    def _along(self, place: Place, fits: Sequence[LeaderFit]) -> Floats:
        """The draws of a curve, each along one of the leaders [draws]."""
        doubt = self._random("pace", place[0]).standard_normal(self._draws)
        lifted = self._random("lifted", *place).standard_normal(self._draws)
        rows = np.array([fit.steps(self._led(fit, lifted), doubt) for fit in fits])
        found = rows[(self._followed * len(rows)).astype(int), np.arange(self._draws)]
        # The probe saw no crossing, so the earliest is behind its last evaluation.
        return np.asarray(np.maximum(found, self._known.curves[place].last))

    def _led(self, fit: LeaderFit, lifted: Floats) -> Floats:
        """The draws of a leader to the level that the follower needs, as noise lifts their evaluations."""
        curve, seen = self._known.curves[fit.leader], self._known.seen.get(fit.leader)
        if seen is None or not fit.noise:
            return self._leaders[fit.leader]
        level = self._known.level + fit.noise * lifted
        within = curve.steps_at(level)
        return np.where(np.isinf(within), self._by_law(fit.leader, level), within)
