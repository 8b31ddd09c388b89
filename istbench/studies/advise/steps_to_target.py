"""Local steps from the start to the target: seen in a probe, or extrapolated beyond its end.

Methods of one workload learn in curves of a similar shape. A curve that is further, the leader, continues one that
ends short of the target. The leader's step of equal value is the start, and the follower keeps its speed relative
to the leader. The range widens with the distance, because two methods do not stay in step.

Leaders are the curves that reached the target. If none did, it is the one with the best value, which goes on by a
power law of its own, with a floor or ceiling: y = a - b * step**-c. Learning curves follow one over a wide range
(Hestness et al. 2017, arXiv:1712.00409). A short curve leaves many triples (a, b, c) possible. Each draw takes one
of them by its likelihood, so the range widens with the distance. A draw whose ceiling is below the target never
reaches it.
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
from istbench.studies.advise.signed_curve import SignedCurve

FURTHEST = 64.0
"""A crossing further than this many times the length of a curve counts as never."""

_LEAST_POINTS = 2
"""Evaluations after step 0 that a law needs."""

_EXPONENTS = np.geomspace(0.1, 2.0, 14)
_PRIOR_NOISE = 0.02
# scripts/bench/extrapolated_steps.py: how often true steps lie in the ranges that these two give.
_LIFTED = 1.0  # standard deviations of an evaluation, by which the first one at the target is above its curve
_BEYOND = 0.35  # spread of the log of the log of a distance, since the law itself is not exact

Place = tuple[str, int]
"""A curve, by the label of its candidate and its seed."""

_SLOPES, _LEAST_SLOPE = 0.2, 0.02  # spread of slopes, before any evaluation tells one
_PRIOR_POINTS = 2.0  # evaluations that a prior counts as, of a fit and of a law
_NOISE = 0.1  # of the log of a leader's step by one evaluation, before others tell it
_PACES = 0.4  # spread of the log of a method's steps to a value over another's: scripts/bench/extrapolated_steps.py
# scripts/bench/extrapolated_steps.py: how often true steps lie in the ranges that these two give.
_SCALE = 0.15  # spread of the log of the steps at the end of a probe
_DRIFT = 0.2  # and of how much further it goes

TOO_FEW = "too few evaluations to extrapolate"
"""The reason of a candidate whose curves end short of the target after a single evaluation, with none to follow."""


@dataclass(frozen=True, kw_only=True)
class StepsToTarget:
    """Local steps to a target of one candidate.

    Attributes:
        by_seed: draws for each seed [seeds, draws]; infinite where a draw never reaches it, as one that diverged.
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
        never = [np.full(draws, math.inf)] * one.diverged
        extrapolated = [place not in known.seen for place in places]
        found[one.label] = StepsToTarget(
            by_seed=np.array([*(drawing.steps(place) for place in places), *never]).reshape(one.seeds, draws),
            extrapolated=np.array([*extrapolated, *(False for _ in never)], dtype=bool),
        )
    return found


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
                if furthest and place[0] == furthest[0] and len(curve.steps) >= _LEAST_POINTS
            ]
        )

    def _add(self, place: Place, curve: Curve, target: float) -> None:
        self.level = curve.metric.signed(target)
        self.curves[place] = SignedCurve.of(curve)
        there = time_to_target(curve, target)
        if there is not None:
            self.seen[place] = max(1.0, there.step)  # nobody is there before the first step

    def _furthest(self, place: Place) -> tuple[bool, float]:
        curve = self.curves[place]
        return len(curve.steps) >= _LEAST_POINTS, float(curve.best[-1]) if len(curve.steps) else -math.inf

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
        return _steps_by_law(self._known.curves[place], level, beyond, self._random("reach", *place))

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


def _steps_by_law(curve: SignedCurve, level: float | Floats, beyond: Floats, random: np.random.Generator) -> Floats:
    """Draws of the step at which `curve`, which ends short of `level`, reaches it [draws]; infinite for never.

    level: one for all draws, or of each [draws]. beyond: standard normal numbers, the error of the law [draws].
    """
    if len(curve.steps) < _LEAST_POINTS:
        return np.full(len(beyond), math.inf)
    distance = _distance(curve.steps / curve.last, curve.values, level, len(beyond), random)
    with np.errstate(over="ignore"):
        distance = np.exp(np.log(np.maximum(distance, 1.0)) * np.exp(_BEYOND * beyond))
    distance[~(distance <= FURTHEST)] = math.inf
    # The probe saw no crossing, so the earliest is behind its last evaluation.
    return np.asarray(distance * curve.last)


def _distance(x: Floats, y: Floats, level: float | Floats, draws: int, random: np.random.Generator) -> Floats:
    """Draws of x at which a - b * x**-c reaches `level`, from rising `y` at `x`, where x = 1 is the last point."""
    freedom = len(x) - 2 + _PRIOR_POINTS
    noise = _PRIOR_POINTS * (_PRIOR_NOISE * float(np.ptp(y))) ** 2
    powers = -(x[None, :] ** -_EXPONENTS[:, None])  # [exponents, points]
    design = np.stack([np.ones_like(powers), powers], axis=2)
    gram = np.linalg.inv(design.transpose(0, 2, 1) @ design)
    middle = np.einsum("cij,cpj,p->ci", gram, design, y)
    errors = ((y - np.einsum("cpi,ci->cp", design, middle)) ** 2).sum(axis=1) + noise
    if not errors.min() > 0:  # a flat line
        return np.full(draws, math.inf)
    likely = (errors / errors.min()) ** (-freedom / 2)
    chosen = random.choice(len(_EXPONENTS), draws, p=likely / likely.sum())
    spread = np.sqrt(errors[chosen] / random.chisquare(freedom, draws))
    moved = np.einsum("dij,dj->di", np.linalg.cholesky(gram)[chosen], random.standard_normal((draws, 2)))
    ceiling, slope = (middle[chosen] + spread[:, None] * moved).T
    # The first evaluation at the target is one that noise lifts.
    above = ceiling - level + _LIFTED * spread
    with np.errstate(all="ignore"):
        crossing = (slope / above) ** (1 / _EXPONENTS[chosen])
    return np.asarray(np.where((above > 0) & (slope > 0), crossing, math.inf))
