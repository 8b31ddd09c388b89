"""The advice: the method to use, its odds, what the others take, and where the answer flips. This is its JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from istbench.base.options.numbers import Nodes, Rate
from istbench.base.options.options import OptionValues, option_text
from istbench.base.options.texts import Message, Short, Text, Texts
from istbench.cluster.clock import dollars
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.replay_checks import Check
from istbench.results.metrics import Metric
from istbench.results.stats import finite
from istbench.studies.advise.candidate import NO_EVALUATION, NO_TIME, NO_TRACE, ONE_NODE, Candidate
from istbench.studies.advise.draws import RUN_SPREAD
from istbench.studies.advise.flips import Flips, find_flips
from istbench.studies.advise.odds import CandidateOdds, Decide, Odds, Verdict, odds
from istbench.studies.advise.seconds import seconds_to
from istbench.studies.advise.steps_to_target import TOO_FEW

_UNTOLD = (NO_TIME, NO_EVALUATION, NO_TRACE, TOO_FEW)


class RankedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate in the advice. A number that would be infinite is None: it is not expected to get there.

    Attributes:
        method, options, label, command, baseline: as in `Candidate`; the command is one line of words.
        seconds, low, high: expected to the target, and the 10 % and 90 % quantiles.
        dollars, dollars_low, dollars_high: of these seconds; None if the cluster has no price.
        odds: that it is first. reaching: that it reaches the target at all. None of an untested one.
        nodes: that it trains on.
        seeds: that trained. diverged: those of them whose loss became no number.
        steps: local steps to the target. extrapolated: whether the target lies beyond its probe.
        computing, exposed: shares of the time that a node computes, and that it waits for messages.
        why_not: the reason why it has no odds; empty if it has.
    """

    method: Text
    options: OptionValues
    command: Annotated[list[Text], Meta(max_length=1000)]
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    label: Text
    baseline: bool = False
    nodes: Nodes
    odds: float | None = None
    reaching: float | None = None
    dollars: float | None = None
    dollars_low: float | None = None
    dollars_high: float | None = None
    steps: float | None = None
    extrapolated: bool = False
    steps_probed: int = 0
    seeds: int = 0
    diverged: int = 0
    computing: float | None = None
    exposed: float | None = None
    memory_bytes: int | None = None
    stopped: Message = ""
    why_not: Message = ""

    def __post_init__(self) -> None:
        if self.seconds is not None and None in (self.steps, self.computing, self.exposed):
            raise ValueError("must have steps, computing and exposed beside its seconds")


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question.

    Attributes:
        verdict: `clear` from odds of 0.8, `close` below them or if an untrained candidate may be faster, `none` if
            no candidate reaches the target in half of the draws, or only one node alone was probed.
        odds: that `best` is first; 0 without a best.
        best: the first of `Odds`; None if the verdict is `none`.
        others: first those that do so, then those that do not, then those without odds.
        may_be_faster: labels of candidates without odds that may win, since no probe tells whether. They turn a
            clear answer into a close one.
        flips: where another trained candidate becomes first. not_tested: a line each.
        decide: the measurement that would decide a close answer; None if none would.
        nobody: odds that no candidate reaches the target; None if no probe has trained, or only one node alone.
        workload, target, metric, lower_is_better, unit, cluster, nodes: the question.
        target_from: the origin of the target in a few words; empty if the user gave it. early: a sentence if one
            node was still climbing steeply when it reached the target; else empty.
        run_spread: the part of all ranges that is measured on earlier advice, as in `draws.RUN_SPREAD`.
    """

    verdict: Verdict
    odds: float
    best: RankedChoice | None
    others: Annotated[tuple[RankedChoice, ...], Meta(max_length=1000)]
    flips: Flips
    not_tested: Annotated[tuple[Message, ...], Meta(max_length=1000)]
    may_be_faster: Texts = ()
    decide: Decide | None = None
    nobody: float | None = None
    workload: Text
    target: float
    metric: Text
    lower_is_better: bool = False
    unit: Short = ""
    target_from: Text = ""
    early: Message = ""
    cluster: Text
    nodes: Nodes
    run_spread: Rate = 0.0

    @property
    def own_metric(self) -> Metric:
        return Metric(self.metric, lower_is_better=self.lower_is_better, unit=self.unit)

    @property
    def choices(self) -> tuple[RankedChoice, ...]:
        """All candidates, the best first."""
        return (*([self.best] if self.best else []), *self.others)


def advise(
    candidates: Sequence[Candidate],
    profile: ClusterProfile,
    *,
    workload: str,
    nodes: int,
    metric: Metric,
    target: float,
    target_from: str = "",
    early: str = "",
    not_tested: Iterable[str] = (),
    checks: Mapping[str, Check] | None = None,
    seed: int = 0,
) -> Advice:
    """The advice on `workload` on `nodes` nodes of `profile` to the level `target` of `metric`.

    target_from, early: as in `Advice`.
    not_tested: lines of the caller, after those that follow from the probes.
    checks: of replays by the user, by method.

    Raises:
        UserError: if a trace cannot be replayed on `profile`.
    """
    found = odds(candidates, profile, target, checks=checks, seed=seed)
    able = [_choice(one, profile, nodes) for one in found.ranked]
    unable = [_without_odds(one, nodes) for one in found.without]
    alone = _only_one_node(found)
    if alone:
        able = [msgspec.structs.replace(one, odds=None, reaching=None) for one in able]
    best = able[0] if found.verdict != "none" and not alone else None
    faster = tuple(_may_be_faster(found, profile, nodes)) if best is not None else ()
    return Advice(
        verdict="none" if best is None else "close" if faster else found.verdict,
        odds=found.ranked[0].odds if best else 0.0,
        best=best,
        others=(*(able[1:] if best else able), *unable),
        flips=find_flips(found.ranked, profile, checks=checks),
        not_tested=(*_not_tested(found, profile), *not_tested),
        may_be_faster=faster,
        decide=found.decide,
        nobody=found.nobody if found.ranked and not alone else None,
        workload=workload,
        target=target,
        target_from=target_from,
        early=early,
        metric=metric.name,
        lower_is_better=metric.lower_is_better,
        unit=metric.unit,
        cluster=profile.name,
        nodes=nodes,
        run_spread=RUN_SPREAD,
    )


def _choice(found: CandidateOdds, profile: ClusterProfile, nodes: int) -> RankedChoice:
    choice = _without_odds(found.candidate, nodes)
    seconds, low, high = map(finite, (found.seconds, found.low, found.high))
    paid = [None if time is None else dollars(profile, choice.nodes, time) for time in (seconds, low, high)]
    return msgspec.structs.replace(
        choice,
        seconds=seconds,
        low=low,
        high=high,
        odds=found.odds,
        reaching=found.reaching,
        dollars=paid[0],
        dollars_low=paid[1],
        dollars_high=paid[2],
        steps=finite(found.steps),
        extrapolated=found.extrapolated,
        computing=found.computing,
        exposed=found.exposed,
    )


def _without_odds(candidate: Candidate, nodes: int) -> RankedChoice:
    return RankedChoice(
        nodes=candidate.nodes or nodes,
        method=candidate.method,
        options={name: _plain(value) for name, value in candidate.options.items()},
        command=list(candidate.command),
        label=candidate.label,
        baseline=candidate.baseline,
        steps_probed=candidate.steps_probed,
        seeds=candidate.seeds,
        diverged=candidate.diverged,
        memory_bytes=candidate.memory_bytes,
        stopped=candidate.stopped,
        why_not=candidate.why_not,
    )


def _plain(value: object) -> bool | int | float | str | None:
    """The value of an option as JSON has it; of several numbers, the text of a command line."""
    return value if value is None or isinstance(value, bool | int | float | str) else option_text(value)


def _only_one_node(found: Odds) -> bool:
    """Whether probes tell of one node alone: its odds compare it with no method."""
    return [one.candidate.label for one in found.ranked] == [ONE_NODE] and any(
        one.why_not in _UNTOLD for one in found.without
    )


def _may_be_faster(found: Odds, profile: ClusterProfile, nodes: int) -> Iterable[str]:
    """Labels of candidates that could win, of which no probe tells, and whose steps take less time than the best's.

    A candidate of unknown speed is one of them. If the best is one node, the others need as few as an n-th of its
    steps: a step of n nodes learns from n minibatches.
    """
    best = found.ranked[0]
    assert best.candidate.trace is not None
    taken = seconds_to(best.candidate.trace, profile, best.steps)
    fewest = best.steps * (best.candidate.nodes or nodes) / nodes
    for one in found.without:
        if one.why_not in (NO_TIME, TOO_FEW) and (
            one.trace is None or seconds_to(one.trace, profile, fewest) < taken
        ):
            yield one.label


def _not_tested(found: Odds, profile: ClusterProfile) -> Iterable[str]:
    candidates = [one.candidate for one in found.ranked]
    probed = max((candidate.steps_probed for candidate in (*candidates, *found.without)), default=0)
    beyond = [one.candidate.label for one in found.ranked if one.extrapolated]
    if not probed:
        yield "Every method: no probe has finished"
        return
    yield f"Training beyond the {probed:,} local steps of the longest probe" + (
        f": the target lies beyond the probes of {', '.join(beyond)}, so their steps are extrapolated"
        if beyond
        else ""
    )
    for one in candidates:
        if one.learns_as:
            yield f"{one.label} itself: it makes the optimizer steps of {one.learns_as}, in the seconds of its plan"
    # Step one has replayed the plan of each candidate with a trace: that replay is the reason to leave it out.
    untrained = [one for one in found.without if not one.failed and not one.steps_probed and one.why_not != NO_TIME]
    for reason, unknown in (
        ("No time to train", [one for one in found.without if one.why_not == NO_TIME]),
        ("Too few evaluations to extrapolate", [one for one in found.without if one.why_not == TOO_FEW]),
        (
            "Left out by their speed here, may win on other networks",
            [one for one in untrained if one.trace is not None],
        ),
    ):
        if unknown:
            yield f"{reason}: {', '.join(one.label for one in unknown)}"
    unplanned = [one.label for one in candidates if one.memory_bytes is None]
    if unplanned:
        yield f"The memory of a node: that of {', '.join(unplanned)} is not known"
    yield "Other learning rates: each method trained with those of its command"
    devices = {one.trace.meta.device for one in candidates if one.trace is not None}
    if "cuda" not in devices:
        there = f", though {profile.name} computes on one" if profile.cores is None else ""
        yield f"A GPU: all probes trained on processors{there}"
