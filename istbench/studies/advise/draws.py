"""Draws of each candidate's seconds to the target: one source of doubt left out, or all of them together.

A draw is one run that a user may start now, with a new seed. Each source has random numbers of its own, from one
seed, so a source can be left out while all others stay as they were.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from istbench.base.seeds import derived_seed
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.replay_checks import Check, known_checks, replay_check
from istbench.cluster.trace import Floats
from istbench.studies.advise.candidate import Candidate
from istbench.studies.advise.seconds import BANDWIDTHS, CandidateClock, candidate_clock
from istbench.studies.advise.steps_to_target import StepsToTarget, steps_to_target

SEEDS, PROBE, BANDWIDTH, COMPUTING, REPLAY = "seeds", "probe", "bandwidth", "computing", "replay"
"""Sources of doubt. `REPLAY` is that of one method: `replay ist`."""

RUN_SPREAD = 0.072
"""Of the log of the seconds of a later run, beside all other doubt: with it, ranges hold 8 of 10 measured cases.

scripts/bench/advice_cases.py computes the spread that its cases need.
"""

_SEED_SPREAD, _SEED_POINTS = 0.06, 4.0  # of the log of steps to a target: scripts/bench/extrapolated_steps.py


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Everything that a draw needs, computed once.

    Attributes:
        candidates: those with a clock, and by label their steps (to_target) and seconds (clocks).
        seed_spread: standard deviation of the log of steps to the target between seeds. freedom: its degrees.
        run_spread: `RUN_SPREAD`.
    """

    candidates: tuple[Candidate, ...]
    to_target: Mapping[str, StepsToTarget]
    clocks: Mapping[str, CandidateClock]
    checks: Mapping[str, Check]
    draws: int
    seed: int
    seed_spread: float
    freedom: float
    run_spread: float

    def random(self, *names: object) -> np.random.Generator:
        """Random numbers, the same for the same names."""
        return np.random.default_rng(derived_seed(self.seed, *names))

    def normal(self, *names: object) -> Floats:
        """Standard normal numbers [draws] of `random`."""
        return self.random(*names).standard_normal(self.draws)

    def uniform(self, low: float, high: float, *names: object) -> Floats:
        """Uniform numbers [draws] of `random`."""
        return self.random(*names).uniform(low, high, self.draws)

    def seconds(self, without: str = "") -> Floats:
        """Seconds to the target [candidates, draws], infinite for never; without one source of doubt."""
        nothing, one = np.zeros(self.draws), np.ones(self.draws)
        bandwidth = one if without == BANDWIDTH else self.uniform(BANDWIDTHS[0], BANDWIDTHS[-1], BANDWIDTH)
        shared = one / 2 if without == COMPUTING else self.uniform(0, 1, COMPUTING)
        rows = []
        for candidate in self.candidates:
            clock, method = self.clocks[candidate.label], candidate.method
            own, missed = nothing, nothing
            if without != COMPUTING:
                own = self.uniform(-1, 1, COMPUTING, candidate.label)
                missed = clock.mean_error * self.normal("mean of the steps", candidate.label)
            computing = (clock.low + shared * (clock.high - clock.low)) * clock.steady**own * np.exp(missed)
            mean, spread = replay_error(method, self.checks)
            error = nothing if without == source_of(method) else spread * self.normal(REPLAY, method)
            seconds = clock.at(self.steps(candidate, without), bandwidth, computing)
            later = np.exp(self.run_spread * self.normal("later run", candidate.label))
            rows.append(later * seconds / np.maximum(1 + mean + error, 0.1))
        return np.array(rows).reshape(len(rows), self.draws)

    def steps(self, candidate: Candidate, without: str = "") -> Floats:
        """Local steps to the target of a run with a new seed [draws].

        The mean of the logs over k seeds that reach it misses the true one by spread / sqrt(k), and a new seed
        differs by the spread. A bootstrap over seeds would give less: k is 1 to 3, and one seed has no spread.
        """
        to_target = self.to_target[candidate.label]
        by_seed = to_target.without_doubt().by_seed if without == PROBE else to_target.by_seed
        seeds = len(by_seed)
        finite = np.isfinite(by_seed)
        count = finite.sum(axis=0)
        logs = np.log(np.where(finite, np.maximum(by_seed, 1e-9), 1.0)).sum(axis=0) / np.maximum(count, 1)
        like = self.uniform(0, 1, "like", candidate.label)
        misses = ~finite[(like * seeds).astype(int), np.arange(self.draws)]
        spread = self.seed_spread * np.sqrt(
            self.freedom / self.random("spread").chisquare(self.freedom, self.draws)
        )
        moved = spread * self.normal("new seed", candidate.label)
        if without != SEEDS:
            moved += spread * self.normal(SEEDS, candidate.label) / np.sqrt(np.maximum(count, 1))
        return np.where(misses, math.inf, np.exp(logs + moved))


def draw(
    candidates: Sequence[Candidate],
    profile: ClusterProfile,
    target: float,
    *,
    checks: Mapping[str, Check],
    draws: int,
    seed: int,
) -> Drawn:
    """The inputs of draws of `candidates` on `profile`, without the candidates that cannot be first.

    Raises:
        UserError: if a trace cannot be replayed on `profile`.
    """
    able = sorted((one for one in candidates if not one.why_not), key=lambda one: one.label)
    to_target = steps_to_target(able, target, draws=draws, seed=seed)
    spread, freedom = seed_spread(to_target.values())
    return Drawn(
        candidates=tuple(able),
        to_target=to_target,
        clocks={one.label: candidate_clock(one, profile) for one in able},
        checks=checks,
        draws=draws,
        seed=seed,
        seed_spread=spread,
        freedom=freedom,
        run_spread=RUN_SPREAD,
    )


def source_of(method: str) -> str:
    """The source of doubt that is the replay of `method`."""
    return f"{REPLAY} {method}"


def replay_error(method: str, checks: Mapping[str, Check]) -> tuple[float, float]:
    """Mean and standard deviation of the ratio of replayed to measured seconds, less one.

    The deviation is the one of normal errors whose largest among as many measurements is as large as that of the
    check. A method that nobody has checked may be as far off as the worst that was.
    """
    check = replay_check(method, checks).check
    if check is None:
        return 0.0, max(abs(known.largest) for known in known_checks().values())
    furthest = NormalDist().inv_cdf(1 - 0.5 / (check.measurements + 1))
    return check.mean, max(abs(check.largest - check.mean) / furthest, check.median)


def seed_spread(found: Iterable[StepsToTarget]) -> tuple[float, float]:
    """The spread of the log of steps between seeds of a candidate, pooled over candidates, and its freedom."""
    squares, freedom = _SEED_POINTS * _SEED_SPREAD**2, _SEED_POINTS
    for to_target in found:
        seen = to_target.by_seed[~to_target.extrapolated, 0]
        seen = seen[np.isfinite(seen)]  # a seed that diverged has no steps
        if len(seen) > 1 and (seen > 0).all():
            logs = np.log(seen)
            squares += float(((logs - logs.mean()) ** 2).sum())
            freedom += len(seen) - 1
    return math.sqrt(squares / freedom), freedom
