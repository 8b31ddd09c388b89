"""A curve continued beyond its end by y = a - b * step**-c, a power law with a floor or ceiling.

Learning curves follow one over a wide range (Hestness et al. 2017, arXiv:1712.00409). A short curve leaves many
triples (a, b, c) possible. Each draw takes one of them by its likelihood, so the range widens with the distance. A
draw whose ceiling is below the target never reaches it.
"""

import math

import numpy as np

from istbench.cluster.trace import Floats
from istbench.studies.advise.signed_curve import SignedCurve

FURTHEST = 64.0
"""A crossing further than this many times the length of a curve counts as never."""

LEAST_POINTS = 2
"""Evaluations after step 0 that a law needs."""

_EXPONENTS = np.geomspace(0.1, 2.0, 14)
_PRIOR_POINTS, _PRIOR_NOISE = 2.0, 0.02
# scripts/bench/extrapolated_steps.py: how often true steps lie in the ranges that these two give.
_LIFTED = 1.0  # standard deviations of an evaluation, by which the first one at the target is above its curve
_BEYOND = 0.35  # spread of the log of the log of a distance, since the law itself is not exact


def steps_by_law(curve: SignedCurve, level: float | Floats, beyond: Floats, random: np.random.Generator) -> Floats:
    """Draws of the step at which `curve`, which ends short of `level`, reaches it [draws]; infinite for never.

    level: one for all draws, or of each [draws]. beyond: standard normal numbers, the error of the law [draws].
    """
    if len(curve.steps) < LEAST_POINTS:
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
