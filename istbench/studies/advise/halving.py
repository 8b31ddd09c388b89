"""Successive halving of candidates within a time, and the arithmetic of their budgets.

Jamieson & Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016: the
time is divided equally among the rungs. In each rung all candidates train equally many local steps, and the better
half goes on to the next one, which trains it longer. The last rung has two candidates and several seeds.

A rung ranks by the metric at equal seconds. The answer extrapolates, so a candidate that was stopped may still be
first by it. Before more seeds, such ones train as long as the last two.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Protocol

import msgspec
import numpy as np
from msgspec import Meta

from istbench.base.options.numbers import Count, Seed
from istbench.results.curves import Curve, time_to_target

FINALISTS = 2
MOST_EVALUATIONS, FEWEST_EVALUATIONS = 40, 4
"""Evaluations of a probe."""
MOST_SEEDS = 5

LEAST_STEPS = 20  # of a probe
_EVALUATING = 0.3  # of the seconds of a probe, at most

LONGER = 1.5  # a rung that is less than this many times as long as the one before tells little more
_WORTH = 2.0  # a probe trains at least this many times as long as it takes to start
_BEYOND = 1.5  # steps of a run over those in which another seed reached the target
_LAST_SEEDS = 2
_LAST = 2 / 3  # of the time
_ALMOST = 0.9  # of the time for one last probe: if its cost is a little more, it has no end
_FINER = 3  # times as many evaluations are worth a rung


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of a probe on this machine: to start and end it, of an evaluation, and of a local step."""

    start_s: float
    evaluation_s: float
    step_s: float

    def seconds(self, steps: int, evaluations: int) -> float:
        """Seconds of a probe of that many steps and evaluations."""
        return self.start_s + evaluations * self.evaluation_s + steps * self.step_s


@dataclass(frozen=True, kw_only=True)
class RungResult:
    """The result of a candidate in a rung.

    reached_s: seconds to the target on the cluster, infinite for a miss. value: of the metric at the seconds that
    all candidates of the rung have, higher for a better one. reached_step: local step of the target, infinite for a
    miss.
    """

    reached_s: float
    value: float
    reached_step: float = math.inf


def rungs_of(count: int) -> int:
    """Number of rungs from `count` candidates to the last rung, which has two."""
    rungs = 1
    while count > FINALISTS:
        count = math.ceil(count / 2)
        rungs += 1
    return rungs


def most_candidates(left_s: float, costs: Sequence[Cost], least: int = FINALISTS) -> int:
    """The number of first `costs` to start with, so that each probe trains longer than it takes to start.

    Fewer than `least` only if `left_s` seconds are too few for so many short probes, and 0 if for any.
    """
    for count in range(len(costs), least, -1):
        share, started = left_s / rungs_of(count), sum(cost.start_s for cost in costs[:count])
        if share - _short(costs[:count]) >= _WORTH * started:
            return count
    return max((count for count in range(least + 1) if _short(costs[:count]) <= left_s), default=0)


def _short(costs: Sequence[Cost]) -> float:
    """Seconds of the shortest probes that tell anything."""
    return sum(cost.seconds(LEAST_STEPS, FEWEST_EVALUATIONS) for cost in costs)


def affordable(seconds: float, costs: Sequence[Cost]) -> tuple[int, int]:
    """Local steps and evaluations that every one of `costs` can train, one after the other, in `seconds`.

    Evaluations take at most a part of the time, unless they are few already. Zero steps if there is no time.
    """
    started, step_s = sum(cost.start_s for cost in costs), sum(cost.step_s for cost in costs)
    evaluation_s = sum(cost.evaluation_s for cost in costs)
    inside = max(0.0, seconds - started)
    affordable = _EVALUATING * inside / evaluation_s if evaluation_s else math.inf
    evaluations = math.floor(min(MOST_EVALUATIONS, max(FEWEST_EVALUATIONS, affordable)))
    return max(0, math.floor((inside - evaluations * evaluation_s) / step_s)), evaluations


def rung_seconds(left_s: float, count: int) -> float:
    """Seconds of the next rung, of `count` candidates.

    The last rung leaves time for a third candidate, if the answer favours one that was stopped, or for more seeds.
    """
    return left_s / rungs_of(count) if count > FINALISTS else left_s * _LAST


def needed_steps(results: Sequence[RungResult]) -> int | None:
    """Local steps with which other seeds reach the target too, if all of `results` did; None if one missed."""
    most = max((one.reached_step for one in results), default=math.inf)
    return None if math.isinf(most) else math.ceil(_BEYOND * most)


def rung_results(curves: Mapping[str, Curve], target: float | None) -> dict[str, RungResult]:
    """The result of each of `curves`, by label, which are on the clock of the cluster.

    The metric counts at the last second that all curves have: candidates have trained equally long there.
    """
    common = min((curve.seconds[-1] for curve in curves.values() if curve.seconds), default=0.0)
    found = {}
    for label, curve in curves.items():
        there = None if target is None else time_to_target(curve, target)
        value = value_at(curve, common)
        found[label] = RungResult(
            reached_s=math.inf if there is None else there.seconds,
            value=-math.inf if value is None else curve.metric.signed(value),
            reached_step=math.inf if there is None else there.step,
        )
    return found


def value_at(curve: Curve, seconds: float) -> float | None:
    """The metric of `curve` at `seconds`, between the evaluations around it; None without a number there."""
    known = [(at, value) for at, value in zip(curve.seconds, curve.values, strict=True) if value is not None]
    return float(np.interp(seconds, [at for at, _ in known], [value for _, value in known])) if known else None


def survivors(found: Mapping[str, RungResult]) -> list[str]:
    """The better half of `found`, at least two: first those that reached the target, in order of their seconds."""
    order = sorted(found, key=lambda label: (found[label].reached_s, -found[label].value))
    return order[: max(FINALISTS, math.ceil(len(order) / 2))]


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """Equal probes of several candidates: local steps, steps between evaluations, the seeds, and the labels."""

    steps: Count
    every: Count
    seeds: Annotated[tuple[Seed, ...], Meta(min_length=1, max_length=100)]
    labels: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...], Meta(max_length=1000)]


class ProbeTrainer(Protocol):
    """Trains probes for `Halving`."""

    def train(self, label: str, rung: Rung, seed: int) -> Curve | None:
        """The curve of one probe, on the clock of the cluster; None if it failed or its time was up."""

    def failed(self, label: str, seed: int | None = None) -> bool:
        """Whether probes of `label` failed, so that it trains no further, or the one of `seed` diverged."""

    def cost(self, label: str) -> Cost:
        """The cost of a probe of `label`, from those before."""

    def left_s(self) -> float:
        """Seconds left for probes."""

    def favourites(self) -> Sequence[str]:
        """The labels that are worth the longest probe, after those so far; first that of the answer so far."""


class Halving:
    """Successive halving of `labels`, the most promising first.

    Args:
        plan: called with each new rung before it trains. earlier: rungs of an interrupted command, trained first.
        most_seeds: seeds of a candidate, at most. least: candidates of the first rung, at least.

    Attributes:
        stopped: by label, the local steps after which a candidate was stopped; 0 before the end of its first probe.
    """

    def __init__(
        self,
        labels: Sequence[str],
        trainer: ProbeTrainer,
        target: float | None,
        *,
        plan: Callable[[Rung], None],
        earlier: Sequence[Rung] = (),
        most_seeds: int = MOST_SEEDS,
        least: int = FINALISTS,
    ) -> None:
        self._most_seeds, self._least = most_seeds, least
        self._labels, self._trainer, self._target, self._plan = list(labels), trainer, target, plan
        self._earlier, self._done = list(earlier), list[Rung]()
        self._wider: Rung | None = None
        self._full: Rung | None = None  # the last one that is not just a part of the one before, for one candidate
        self._challenged = False  # whether a stopped candidate went on
        self._repeats = False  # whether all rungs so far are those of an earlier command
        self._began_s = trainer.left_s()
        self._curves: dict[str, dict[int, dict[int, Curve]]] = {}  # by label, steps and seed
        self.stopped: dict[str, int] = {}

    def run(self) -> None:
        """Train rung by rung until the time or the seeds are used up."""
        alive = self._first()
        while alive and (rung := self._next(alive)) is not None:
            if not self._train(rung):
                return
            if rung is not self._full:
                continue
            alive = [
                label
                for label in self._labels_done()
                if rung.steps in self._curves.get(label, {})
                and label not in self.stopped
                and not self._trainer.failed(label)
            ]
            if not self._widens(rung) and len(alive) > FINALISTS:
                kept = survivors(self._results(alive, rung.steps))
                self.stopped |= {label: rung.steps for label in alive if label not in kept}
                alive = kept

    def _first(self) -> list[str]:
        if self._earlier:
            return list(self._earlier[0].labels)
        costs = [self._trainer.cost(label) for label in self._labels]
        # These costs are guesses. A limit on the time guards the probes, so the first ones are tried in any case.
        return self._labels[: max(self._least, most_candidates(self._trainer.left_s(), costs, self._least))]

    def _next(self, alive: Sequence[str]) -> Rung | None:
        """The next rung; None if there is no time, or no use."""
        if self._earlier:
            self._repeats = True
            return self._earlier.pop(0)
        rung = self._wider or self._longer(alive) or self._finer(alive) or self._last(alive)
        self._wider = None
        if rung is not None:
            self._repeats = False
            self._plan(rung)
        return rung

    def _widens(self, rung: Rung) -> bool:
        """Whether the next rung has the same budget as `rung`, the first one, and further candidates.

        The first probes tell the true cost of a probe, and a run ends early at the target: there may be time for
        more candidates than planned.
        """
        if self._earlier:
            new = not {*self._earlier[0].labels} & {*self._labels_done()}
            return new and self._earlier[0].steps == rung.steps and self._earlier[0].seeds == rung.seeds
        first = self._done[0]
        waiting = [label for label in self._labels if label not in self._labels_done()]
        if rung.steps != first.steps or rung.seeds != first.seeds or not waiting:
            return False
        left = self._trainer.left_s()
        share = self._began_s / rungs_of(len(self._labels_done()) + 1)
        trained = [curve for own in self._curves.values() for curve in own.get(rung.steps, {}).values()]
        longest = max((_last_step(curve) for curve in trained), default=rung.steps)
        evaluations = -(-longest // rung.every) + 1
        spare, count = share - (self._began_s - left), 0
        while count < len(waiting):
            spare -= self._trainer.cost(waiting[count]).seconds(longest, evaluations)
            if spare < 0:
                break
            count += 1
        if count:
            self._wider = Rung(steps=rung.steps, every=rung.every, seeds=rung.seeds, labels=tuple(waiting[:count]))
        return bool(count)

    def _labels_done(self) -> list[str]:
        return list(dict.fromkeys(label for rung in self._done for label in rung.labels))

    def _longer(self, alive: Sequence[str]) -> Rung | None:
        """A rung of more local steps; None if the last rung is done, or all reached the target.

        If all candidates have too little time for that, the better half of them goes on alone, and so forth. After
        the last rung of an earlier command, more time makes a longer one.
        """
        steps = self._full.steps if self._full else 0
        tried = {label for rung in self._done if rung.steps == steps for label in rung.labels}
        was_last = (self._challenged or len(tried) <= FINALISTS) and not self._repeats
        if steps and (was_last or self._needed(alive, steps) is not None):
            return None
        left, costs = self._trainer.left_s(), [self._trainer.cost(label) for label in alive]
        more, evaluations = affordable(rung_seconds(left, len(alive)), costs)
        if not steps and more < LEAST_STEPS and left > 0:
            more, evaluations = LEAST_STEPS, FEWEST_EVALUATIONS
        if more < max(LEAST_STEPS, math.ceil(LONGER * steps)):
            if not steps or len(alive) <= FINALISTS:
                return None
            kept = survivors(self._results(alive, steps))
            longer = self._longer(kept)
            if longer is not None:
                self.stopped |= {label: steps for label in alive if label not in longer.labels}
            return longer
        every = -(-more // evaluations)
        return Rung(steps=more, every=every, seeds=(0,), labels=tuple(alive))

    def _finer(self, alive: Sequence[str]) -> Rung | None:
        """The last rung again, with more evaluations before the target; None if it had enough, or was longer."""
        last = self._full
        needed = self._needed(alive, last.steps) if last else None
        if last is None or needed is None:
            return None
        costs = [self._trainer.cost(label) for label in alive]
        _, evaluations = affordable(self._trainer.left_s() / _LAST_SEEDS, costs)
        every = max(1, needed // evaluations)
        steps = max(LEAST_STEPS, needed)
        if _FINER * every > last.every or steps >= last.steps or not self._affords(costs, steps, every):
            return None
        return Rung(steps=steps, every=every, seeds=(0,), labels=tuple(alive))

    def _affords(self, costs: Sequence[Cost], steps: int, every: int) -> bool:
        return sum(cost.seconds(steps, -(-steps // every) + 1) for cost in costs) <= self._trainer.left_s()

    def _last(self, alive: Sequence[str]) -> Rung | None:
        """The last rung of a favourite that was stopped, or of an untested candidate; else another seed."""
        last = self._full
        if last is None:
            return None
        favourites = self._trainer.favourites()
        whole = [label for label in favourites if last.steps in self._curves.get(label, {})]
        # A challenge has the first seed alone. One that diverged would diverge again.
        others = [label for label in favourites if label not in whole and not self._trainer.failed(label, 0)]
        challenges = (self._challenge(label, last) for label in others)
        if (challenge := next(filter(None, challenges), None)) is not None:
            return challenge
        for label in self._labels:
            untested = label not in self._labels_done() and not self._trainer.failed(label)
            if untested and (challenge := self._challenge(label, last)) is not None:
                self.stopped[label] = 0
                return challenge
        finalists = list(dict.fromkeys([*whole, *survivors(self._results(alive, last.steps))]))[:FINALISTS]
        return self._another_seed(finalists, last)

    def _challenge(self, label: str, last: Rung) -> Rung | None:
        """The rung `last` for a stopped candidate, or what there is time for; None if that tells little more."""
        cost = self._trainer.cost(label)
        steps, every = last.steps, last.every
        if not self._affords([cost], steps, every):
            steps, evaluations = affordable(_ALMOST * self._trainer.left_s(), [cost])
            every = max(1, -(-steps // evaluations))
        longest = max(self._curves.get(label, {}), default=0)
        if not max(LEAST_STEPS, math.ceil(LONGER * longest)) <= steps <= last.steps:
            return None
        return Rung(steps=steps, every=every, seeds=(0,), labels=(label,))

    def _another_seed(self, alive: Sequence[str], last: Rung) -> Rung | None:
        """`last` with the next seed; None if there are enough, or no time."""
        seed = 1 + max(seed for rung in self._done for seed in rung.seeds if rung.steps == last.steps)
        needed = 0.0
        for label in alive:
            trained = max(_last_step(curve) for curve in self._curves[label][last.steps].values())
            needed += self._trainer.cost(label).seconds(trained, -(-trained // last.every) + 1)
        if seed >= self._most_seeds or needed > self._trainer.left_s():
            return None
        return Rung(steps=last.steps, every=last.every, seeds=(seed,), labels=tuple(alive))

    def _train(self, rung: Rung) -> bool:
        """Train all probes of `rung`; False if the time was up before the end."""
        self._done.append(rung)
        challenges = bool(self.stopped.keys() & {*rung.labels})
        self._challenged |= challenges
        if challenges and self._full is not None and rung.steps < self._full.steps:
            self.stopped |= dict.fromkeys(rung.labels, rung.steps)
        else:
            self._full = rung
            self.stopped = {label: steps for label, steps in self.stopped.items() if label not in rung.labels}
        whole = True
        for seed in rung.seeds:
            for label in rung.labels:
                curve = self._trainer.train(label, rung, seed)
                if curve is not None and curve.evaluations:
                    self._curves.setdefault(label, {}).setdefault(rung.steps, {})[seed] = curve
                elif not self._trainer.failed(label, seed):
                    whole = False
        return whole

    def _needed(self, labels: Sequence[str], steps: int) -> int | None:
        return needed_steps(list(self._results(labels, steps).values()))

    def _results(self, labels: Sequence[str], steps: int) -> dict[str, RungResult]:
        """The result of each of `labels` after `steps`: the mean over the seeds that all have."""
        trained = {label: self._curves[label][steps] for label in labels}
        seeds = set.intersection(*(set(own) for own in trained.values())) if trained else set()
        by_seed = [
            rung_results({label: own[seed] for label, own in trained.items()}, self._target)
            for seed in sorted(seeds)
        ]
        if not by_seed:
            return {}
        return {
            label: RungResult(
                reached_s=fmean(one[label].reached_s for one in by_seed),
                value=fmean(one[label].value for one in by_seed),
                reached_step=fmean(one[label].reached_step for one in by_seed),
            )
            for label in labels
        }


def _last_step(curve: Curve) -> int:
    return curve.evaluations[-1].step
