"""The odds that each candidate is the first to the target, and the measurement that would decide."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from istbench.base.options.texts import Text
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.replay_checks import Check
from istbench.cluster.trace import Floats
from istbench.studies.advise.candidate import Candidate
from istbench.studies.advise.draws import BANDWIDTH, COMPUTING, PROBE, SEEDS, Drawn, draw, source_of
from istbench.studies.advise.steps_to_target import judged

Verdict = Literal["clear", "close", "none"]

CLEAR = 0.8
"""Odds from which the answer is clear."""

QUANTILES = (0.1, 0.5, 0.9)
"""The low end, the expected value and the high end of seconds and steps."""

_DRAWS = 4000
_HELPS = 0.01
_LIKELY = 0.1


@dataclass(frozen=True, kw_only=True)
class CandidateOdds:
    """One candidate in the odds.

    Attributes:
        odds: that it is first. reaching: that it reaches the target at all.
        seconds, low, high: to the target, the quantiles `QUANTILES` of the draws; infinite for never.
        steps: local steps to the target, the median; infinite for never.
        extrapolated: whether the target lies beyond the probe of a seed.
        computing, exposed: shares of the time, as in `seconds.CandidateClock`.
    """

    candidate: Candidate
    odds: float
    reaching: float
    seconds: float
    low: float
    high: float
    steps: float
    extrapolated: bool
    computing: float
    exposed: float


class Decide(msgspec.Struct, frozen=True, kw_only=True):
    """The source of doubt whose end would raise the top odds most: the measurement that would decide.

    kind: as in `draws`. method: of a replay; else empty. odds: the top odds without it.
    """

    kind: Literal["seeds", "bandwidth", "computing", "probe", "replay"]
    method: Text = ""
    odds: float


@dataclass(frozen=True, kw_only=True)
class Odds:
    """The odds of all candidates: those expected to reach the target first, then the others, the likeliest first.

    A candidate is expected to reach it if it does so in at least half of the draws, so its seconds are finite. The
    very first one has clear odds, or else the least geometric mean of its expected seconds and the high end of
    their range. The best odds, or the fewest expected seconds alone, often belong to the widest range, of which
    little is known.

    verdict: `none` if no candidate is expected to reach it; else by the odds of the first.
    nobody: the odds that no candidate reaches it. These and the odds of the candidates add up to 1.
    decide: None if the verdict is not `close`, or if no measurement would help.
    without: candidates without odds, by label; `why_not` is the reason of each.
    """

    verdict: Verdict
    ranked: tuple[CandidateOdds, ...]
    nobody: float
    decide: Decide | None
    without: tuple[Candidate, ...]


def odds(
    candidates: Sequence[Candidate],
    profile: ClusterProfile,
    target: float,
    *,
    checks: Mapping[str, Check] | None = None,
    draws: int = _DRAWS,
    seed: int = 0,
) -> Odds:
    """The odds of `candidates` on `profile` to `target`, a level of the metric of their curves.

    checks: of replays by the user, by method; istbench's own stand for the others.
    Equal arguments give equal odds, in any order of the candidates.

    Raises:
        UserError: if a trace cannot be replayed on `profile`.
    """
    candidates = judged(candidates, target)
    drawn = draw(candidates, profile, target, checks=checks or {}, draws=draws, seed=seed)
    seconds = drawn.seconds()
    wins = first(seconds)
    ranked = sorted(
        (
            _candidate_odds(drawn, candidate, own, float(won))
            for candidate, own, won in zip(drawn.candidates, seconds, wins, strict=True)
        ),
        key=lambda found: (math.isinf(found.seconds), -found.odds, found.seconds, found.candidate.label),
    )
    best = min(
        ranked, key=lambda found: (found.odds < CLEAR, found.seconds * found.high, found.seconds), default=None
    )
    ranked.sort(key=lambda found: found is not best)
    nobody = float(np.isinf(seconds).all(axis=0).mean())
    expected = bool(ranked) and math.isfinite(ranked[0].seconds)
    verdict: Verdict = "none" if not expected else "clear" if ranked[0].odds >= CLEAR else "close"
    return Odds(
        verdict=verdict,
        ranked=tuple(ranked),
        nobody=nobody,
        decide=_decide(drawn, ranked) if verdict == "close" else None,
        without=tuple(sorted((one for one in candidates if one.why_not), key=lambda one: one.label)),
    )


def first(seconds: Floats) -> Floats:
    """Each row's share of the draws that it wins [rows]; rows that tie share a draw. seconds: [rows, draws]."""
    if not len(seconds):
        return np.zeros(0)
    fastest = seconds.min(axis=0)
    won = (seconds == fastest) & np.isfinite(fastest)
    return np.asarray((won / np.maximum(won.sum(axis=0), 1)).mean(axis=1))


def worth_probing(found: Odds, plain: Sequence[str]) -> list[str]:
    """Labels whose longer probes would tell most: the first one's, and those with odds of a tenth.

    plain: of `ddp`. It is added if the target of the first one lies beyond its probe, because the answer compares
    with it. Others can follow it: without an outer step no method learns more in a local step.
    """
    first_one = [] if found.verdict == "none" else [found.ranked[0]]
    likely = sorted(found.ranked, key=lambda one: -one.odds)
    labels = [
        *(one.candidate.label for one in first_one),
        *([] if first_one and not first_one[0].extrapolated else plain),
        *(one.candidate.label for one in likely if one.odds >= _LIKELY),
    ]
    return list(dict.fromkeys(labels))


def _candidate_odds(drawn: Drawn, candidate: Candidate, seconds: Floats, odds: float) -> CandidateOdds:
    clock = drawn.clocks[candidate.label]
    low, middle, high = np.quantile(seconds, QUANTILES, method="lower").tolist()
    return CandidateOdds(
        candidate=candidate,
        odds=odds,
        reaching=float(np.isfinite(seconds).mean()),
        seconds=middle,
        low=low,
        high=high,
        steps=float(np.quantile(drawn.steps(candidate), 0.5, method="lower")),
        extrapolated=bool(drawn.to_target[candidate.label].extrapolated.any()),
        computing=clock.computing,
        exposed=clock.exposed,
    )


def _decide(drawn: Drawn, ranked: Sequence[CandidateOdds]) -> Decide | None:
    sources = [SEEDS, BANDWIDTH, COMPUTING]
    sources += [PROBE] if any(found.extrapolated for found in ranked) else []
    sources += [source_of(found.candidate.method) for found in ranked[:2]]
    tried = []
    for source in sources:
        kind, _, method = source.partition(" ")
        record = {"kind": kind, "method": method, "odds": float(first(drawn.seconds(source)).max())}
        tried.append(msgspec.convert(record, Decide))
    best = max(tried, key=lambda one: one.odds)
    return best if best.odds > max(found.odds for found in ranked) + _HELPS else None
