"""Local steps from the start to the target: seen in a probe, or extrapolated beyond its end.

A curve that ends short of the target goes on in one of two ways:

- A long probe follows a power law of its own (`power_law`).
- A short one says too little for that. Methods of one workload learn in curves of a similar shape, so it goes on
  as the long probes do: from the step at which such a probe had learned as much as it, in steps scaled to its own.
  Each draw follows one of them. The further it goes, the less do two methods stay in step: the range widens.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from istbench.advise.candidate import Candidate
from istbench.advise.power_law import LEAST_POINTS, steps_by_law
from istbench.advise.progress import Progress, signed
from istbench.cluster.trace import Floats
from istbench.results.curves import Curve, time_to_target
from istbench.seeds import derived_seed

TOO_FEW = "too few evaluations to extrapolate"
"""The reason of a candidate whose curves end short of the target after a single evaluation, with none to follow."""

_LONG = 0.5  # of the steps of the longest probe: such a one follows its own law
_RECENT = 0.5  # of the steps of a short probe: the part that gives its scale
# scripts/bench/extrapolated_steps.py: how often true steps lie in the ranges that these two give.
_SCALE = 0.25  # spread of the log of a scale at the end of a short probe
_DRIFT = 0.2  # and of its change, over the log of how much further the longer one goes


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


def judged(candidates: Sequence[Candidate], target: float) -> list[Candidate]:
    """`candidates` without the curves that tell nothing of their steps to `target`; failed if all of one do.

    Methods with long rounds may evaluate a short probe only once after step 0. Through one point goes any law, but
    it may follow a longer probe.
    """
    known = _Known(candidates, target)
    return [_judged(one, known) for one in candidates]


def _judged(candidate: Candidate, known: "_Known") -> Candidate:
    telling = {seed: curve for seed, curve in candidate.curves.items() if known.tells((candidate.label, seed))}
    if telling or candidate.why_not:
        return dataclasses.replace(candidate, curves=telling or candidate.curves)
    return dataclasses.replace(candidate, failed=TOO_FEW)


def reach_of(candidates: Sequence[Candidate], target: float, *, draws: int, seed: int) -> dict[str, Reach]:
    """Draws of the local steps to `target` for each seed of each of `candidates`, by label."""
    known = _Known(candidates, target)
    drawing = _Drawing(known, draws, seed)
    found = {}
    for one in candidates:
        places = [(one.label, own) for own in one.curves]
        rows = [drawing.steps(place) for place in places]
        found[one.label] = Reach(
            by_seed=np.array(rows).reshape(len(rows), draws),
            extrapolated=np.array([place not in known.seen for place in places], dtype=bool),
        )
    return found


_Place = tuple[str, int]
"""A curve, by the label of its candidate and its seed."""


class _Known:
    """The curves of all candidates.

    Attributes:
        curves: each as progress. level: the target, so that higher is better.
        seen: steps to the target of the curves that reached it.
        long: the curves that others may follow: they reached the target, or are long themselves.
    """

    def __init__(self, candidates: Sequence[Candidate], target: float) -> None:
        self.curves: dict[_Place, Progress] = {}
        self.seen: dict[_Place, float] = {}
        self.level = target
        for one in candidates:
            for seed, curve in one.curves.items():
                self._add((one.label, seed), curve, target)
        longest = max((progress.last for progress in self.curves.values()), default=0.0)
        self.long = [
            place
            for place, progress in self.curves.items()
            if place in self.seen or (progress.last >= _LONG * longest and len(progress.steps) >= LEAST_POINTS)
        ]

    def _add(self, place: _Place, curve: Curve, target: float) -> None:
        self.level = signed(target, curve.metric)
        self.curves[place] = Progress.of(curve)
        there = time_to_target(curve, target)
        if there is not None:
            self.seen[place] = there.step

    def tells(self, place: _Place) -> bool:
        """Whether a curve tells anything of its steps to the target. If it diverged: that it never gets there."""
        points = len(self.curves[place].steps)
        return place in self.seen or points != 1 or bool(self.scales(place))

    def scales(self, place: _Place) -> "list[_Scale]":
        """How a short curve follows each of the long ones that learned more than it."""
        mine, found = self.curves[place], []
        for other in self.long:
            theirs = self.curves[other]
            if other == place or not len(mine.steps) or not 0 < theirs.step_at(mine.best[-1]) < theirs.last:
                continue
            recent = mine.steps >= _RECENT * mine.last
            steps = np.array([theirs.step_at(value) for value in mine.best[recent]])
            logs = np.log(mine.steps[recent][steps > 0] / steps[steps > 0])
            found.append(_Scale(place=other, log=float(logs.mean()), step=float(steps[-1])))
        return found


@dataclass(frozen=True)
class _Scale:
    """How a short curve follows a long one.

    Attributes:
        place: the long curve. log: of the steps of the short one over those of the long one, at equal values.
        step: of the long one, at the value at the end of the short one.
    """

    place: _Place
    log: float
    step: float


class _Drawing:
    """Draws of the steps to the target of each of the `known` curves."""

    def __init__(self, known: _Known, draws: int, seed: int) -> None:
        self._known, self._draws, self._seed = known, draws, seed
        self._long = {place: self._by_itself(place) for place in known.long}
        # Draws that follow the same probe share its own doubt, which then says nothing of who is first.
        self._followed = self._random("followed").uniform(0, 1, draws)

    def _random(self, *names: object) -> np.random.Generator:
        return np.random.default_rng(derived_seed(names[0], self._seed, *names[1:]))

    def steps(self, place: _Place) -> Floats:
        """Draws of the steps of the curve at `place` [draws]."""
        if place in self._long:
            return self._long[place]
        scales = self._known.scales(place)
        return self._along(place, scales) if scales else self._by_itself(place)

    def _by_itself(self, place: _Place) -> Floats:
        """The draws from that curve alone [draws]."""
        label, own = place
        if place in self._known.seen:
            return np.full(self._draws, self._known.seen[place])
        # One law is wrong in the same way for all seeds of a candidate.
        beyond = self._random("beyond", label).standard_normal(self._draws)
        return steps_by_law(self._known.curves[place], self._known.level, beyond, self._random("reach", label, own))

    def _along(self, place: _Place, scales: "Sequence[_Scale]") -> Floats:
        """The draws of a short curve, each along one of the long ones [draws]."""
        drifted = self._random("drift", place[0]).standard_normal(self._draws)
        rows = []
        for one in scales:
            steps = self._long[one.place]
            further = np.log(np.where(np.isfinite(steps), steps, one.step) / one.step)
            rows.append(steps * np.exp(one.log + drifted * np.hypot(_SCALE, _DRIFT * further)))
        chosen = (self._followed * len(rows)).astype(int)
        # The probe saw no crossing, so the earliest is behind its last evaluation.
        return np.asarray(
            np.maximum(np.array(rows)[chosen, np.arange(self._draws)], self._known.curves[place].last)
        )
