"""Local steps from the start to the target: seen in a probe, or extrapolated beyond its end.

A curve that ends short of the target is continued by y = a - b * step**-c, a power law with a floor or ceiling, as
learning curves follow over a wide range (Hestness et al. 2017, arXiv:1712.00409). A short curve leaves many triples
(a, b, c) possible. Each draw takes one of them by its likelihood, so the range widens with the distance from the
probe. A draw whose ceiling is below the target never reaches it.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from istbench.advise.candidate import Candidate
from istbench.cluster.trace import Floats
from istbench.results.curves import Curve, time_to_target
from istbench.seeds import derived_seed

FURTHEST = 64.0
"""A crossing further than this many probes away counts as never."""

TOO_FEW = "too few evaluations to extrapolate"
"""The reason of a candidate whose curves end short of the target after a single evaluation."""

_EXPONENTS = np.geomspace(0.1, 2.0, 14)
_PRIOR_POINTS, _PRIOR_NOISE = 2.0, 0.02
# scripts/bench/extrapolated_steps.py: how often true steps lie in the ranges that these two give.
_LIFTED = 1.0  # standard deviations of an evaluation, by which the first one at the target is above its curve
_BEYOND = 0.35  # spread of the log of the log of a distance, since the law itself is not exact


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Local steps to a target of one candidate.

    Attributes:
        by_seed: draws for each seed [seeds, draws]; infinite where a draw never reaches it.
        extrapolated: whether the target lies beyond the probe, for each seed [seeds].
    """

    by_seed: Floats
    extrapolated: NDArray[np.bool_]

    def without_doubt(self) -> "Reach":
        """The same with the median of every extrapolation in place of its draws, as a longer probe would give."""
        middle = np.quantile(self.by_seed, 0.5, axis=1, method="lower", keepdims=True)
        return Reach(by_seed=np.broadcast_to(middle, self.by_seed.shape), extrapolated=self.extrapolated)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Local steps to a target by one seed. low, high: 10 % and 90 % quantiles; all infinite for never."""

    median: float
    low: float
    high: float
    extrapolated: bool


def judged(candidate: Candidate, target: float) -> Candidate:
    """`candidate` without the curves that tell nothing of its steps to `target`; failed if all of them do.

    Methods with long rounds may evaluate a short probe only once after step 0. Through one point goes any law.
    """
    telling = {
        seed: curve
        for seed, curve in candidate.curves.items()
        if time_to_target(curve, target) or sum(evaluation.step > 0 for evaluation in curve.evaluations) > 1
    }
    if telling or candidate.why_not:
        return dataclasses.replace(candidate, curves=telling or candidate.curves)
    return dataclasses.replace(candidate, failed=TOO_FEW)


def steps_to(candidate: Candidate, target: float, *, draws: int = 2000, seed: int = 0) -> Mapping[int, Steps]:
    """Local steps of `candidate` to `target`, a level of its metric, by seed of its curves."""
    reach = reach_of(candidate, target, draws=draws, seed=seed)
    found = {}
    for at, own in enumerate(candidate.curves):
        low, middle, high = np.quantile(reach.by_seed[at], (0.1, 0.5, 0.9), method="lower").tolist()
        found[own] = Steps(median=middle, low=low, high=high, extrapolated=bool(reach.extrapolated[at]))
    return found


def reach_of(candidate: Candidate, target: float, *, draws: int, seed: int) -> Reach:
    """Draws of the local steps to `target` for each seed of `candidate`."""
    rows, extrapolated = [], []
    # One law is wrong in the same way for all seeds of a candidate.
    beyond = np.random.default_rng(derived_seed("beyond", seed, candidate.label)).standard_normal(draws)
    for own, curve in candidate.curves.items():
        seen = time_to_target(curve, target)
        extrapolated.append(seen is None)
        if seen is not None:
            rows.append(np.full(draws, seen.step))
        else:
            random = np.random.default_rng(derived_seed("reach", seed, candidate.label, own))
            rows.append(_extrapolated(curve, target, beyond, random))
    return Reach(by_seed=np.array(rows).reshape(len(rows), draws), extrapolated=np.array(extrapolated, dtype=bool))


def _extrapolated(curve: Curve, target: float, beyond: Floats, random: np.random.Generator) -> Floats:
    """Draws of the step at which the continued curve reaches `target` [draws]."""
    sign = -1.0 if curve.metric.lower_is_better else 1.0
    points = [
        (evaluation.step, sign * value)
        for evaluation, value in zip(curve.evaluations, curve.values, strict=True)
        if evaluation.step and value is not None and math.isfinite(value)
    ]
    if len(points) < 2:
        return np.full(len(beyond), math.inf)
    steps, values = np.array(points, dtype=float).T
    last = float(steps[-1])
    distance = _distance(steps / last, values, sign * target, len(beyond), random)
    with np.errstate(over="ignore"):
        distance = np.exp(np.log(np.maximum(distance, 1.0)) * np.exp(_BEYOND * beyond))
    distance[~(distance <= FURTHEST)] = math.inf
    # The probe saw no crossing, so the earliest is behind its last evaluation.
    return np.asarray(distance * last)


def _distance(x: Floats, y: Floats, level: float, draws: int, random: np.random.Generator) -> Floats:
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
