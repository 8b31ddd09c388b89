"""The trials of a method: its defaults, then points of a quasi-random sequence in its ranges. And their judge."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from istbench.base.errors import UserError
from istbench.base.seeds import derived_seed
from istbench.cluster.profile import ClusterProfile
from istbench.report.targets import EvaluationError, evaluation_error
from istbench.results.header import Header
from istbench.results.load import Run, load_run
from istbench.results.metrics import Metric, level_text
from istbench.results.on_cluster import runs_on_clusters
from istbench.results.store import RunDirectory
from istbench.studies.tuning.ranges import Range

_MOST_REFUSED = 50  # points that are refused or repeated, for each trial


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial of a method. number: from 1, which has the defaults. options: beside the defaults of the workload.

    settings: values of all options, as the configuration of its run records them.
    """

    method: str
    number: int
    options: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def typed_options(self) -> dict[str, Any]:
        """The options with values of their types, where the user typed texts."""
        return {name: self.settings.get(name, value) for name, value in self.options.items()}


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A trial after its run.

    Attributes:
        cell: name of the cell; empty if the run left none.
        failed: whether its run ended by another error than a loss that is no number, or reached the target and has
            no replay that tells its seconds.
        value: the metric at the end of the run; None if it diverged.
        seconds: on the cluster to the target; None for a miss, and where the metric judges.
    """

    trial: Trial
    cell: str = ""
    failed: bool = False
    value: float | None = None
    seconds: float | None = None


def places(names: Sequence[str], seed: int) -> Iterator[tuple[float, ...]]:
    """Places in a cube with a side for each of `names`, from 0 to 1: a Sobol sequence, shifted by `seed`.

    The sides follow from their position and name alone. Methods whose first option is the learning rate try the
    same learning rates, as multiples of their defaults. Longer sequences begin with the shorter ones.
    """
    shifts = [derived_seed(seed, "tune", name) / 2**63 for name in names]
    engine = torch.quasirandom.SobolEngine(len(names))
    while True:
        (point,) = engine.draw(1, dtype=torch.float64).tolist()
        yield tuple((place + shift) % 1.0 for place, shift in zip(point, shifts, strict=True))


def trials_of(
    method: str,
    ranges: Sequence[Range],
    count: int,
    seed: int,
    build: Callable[[Mapping[str, Any]], Any],
    fixed: Mapping[str, Any],
) -> list[Trial]:
    """`count` different trials of `method`: its defaults with the options `fixed`, then points in `ranges`.

    build: the options of the method from given ones; it raises `UserError` for options that exclude each other.
    Such points are passed over.

    Raises:
        UserError: if the ranges have no `count` points that the method accepts.
    """
    found: dict[str, Trial] = {}
    refusal = ""

    def add(options: Mapping[str, Any]) -> None:
        settings = dataclasses.asdict(build(options))
        trial = Trial(method=method, number=len(found) + 1, options=options, settings=settings)
        found.setdefault(json.dumps(settings, sort_keys=True), trial)

    add(dict(fixed))
    points = places([own.name for own in ranges], seed)
    for _ in range(_MOST_REFUSED * count):
        if len(found) == count:
            break
        values = {own.name: own.at(place) for own, place in zip(ranges, next(points), strict=True)}
        try:
            add({**fixed, **values})
        except UserError as error:
            refusal = f"; for example, {error}"
    if len(found) == count:
        return list(found.values())
    raise UserError(
        f"method {method!r} has {len(found)} different settings in its ranges, not {count}: use fewer --trials, or "
        f"a wider --range{refusal}"
    )


def best(tried: Sequence[Tried], metric: Metric) -> Tried | None:
    """The best of `tried`: the first at the target, else the best metric; None if no trial has one.

    Of equal trials the one with the lowest number wins. A trial whose metric is not a number is never the best.
    """
    ordered = sorted(tried, key=lambda own: own.trial.number)
    there = [own for own in ordered if own.seconds is not None]
    if there:
        return min(there, key=lambda own: own.seconds or 0.0)
    known = [(metric.signed(own.value), own) for own in ordered if own.value is not None and not own.failed]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def spread(tried: Sequence[Tried], by_seconds: bool) -> list[float]:
    """The values that judge the trials, rising; without trials that failed, missed or have no number."""
    values = [own.seconds if by_seconds else own.value for own in tried]
    return sorted(value for value in values if value is not None)


def key_of(method: str, nodes: int, settings: Mapping[str, Any]) -> str:
    """A text that identifies the cell of a trial in this command: by its method, nodes and options."""
    return json.dumps([method, nodes, dict(settings)], sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Judge:
    """The judge of the trials: seconds to `target` on `cluster`, or without both the metric at their end."""

    target: float | None = None
    cluster: ClusterProfile | None = None

    @property
    def by_seconds(self) -> bool:
        return self.target is not None

    def words(self, metric: str, budget: str) -> str:
        """The judgement in words: `accuracy after 10 epochs`."""
        if self.target is not None and self.cluster is not None:
            return f"seconds to {metric} {level_text(self.target)} on {self.cluster.name}, replayed"
        return f"{metric} after {budget}"


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The trials of one method on `nodes` nodes, in order, and the best of them; None if no run finished."""

    method: str
    nodes: int
    tried: tuple[Tried, ...]
    best: Tried | None

    @property
    def counted(self) -> int:
        """The number of trials with a result; one that diverged has one."""
        return sum(not tried.failed for tried in self.tried)

    @property
    def defaults(self) -> Tried:
        return self.tried[0]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """All contests, the metric of the workload, a header that tells data and budget, and problems of replays.

    error: the standard error of an evaluation; None if it is unknown.
    unreadable: a line for each run with a damaged file; its trial counts as failed.
    """

    contests: tuple[Contest, ...]
    metric: Metric
    header: Header
    problems: tuple[str, ...]
    error: EvaluationError | None = None
    unreadable: tuple[str, ...] = ()


def judge_runs(
    runs: Iterable[RunDirectory], trials: Mapping[str, Sequence[Trial]], nodes: Sequence[int], judge: Judge
) -> Judgement | None:
    """The judgement on the `runs` of `trials` that finished or diverged; None if none finished.

    Raises:
        UserError: if none finished but runs with damaged files.
    """
    ended, unreadable = list[Run](), list[str]()
    for directory in runs:
        try:
            ended.append(load_run(directory))
        except UserError as damage:
            unreadable.append(str(damage))
    done = [run for run in ended if run.done]
    if not done and unreadable:
        raise UserError(unreadable[0])
    if not done:
        return None
    moved, problems = list[Run](), list[str]()
    if judge.cluster is not None:
        (moved,), problems = runs_on_clusters(done, [judge.cluster])
    by_key, replayed = ({_key(run.header): run for run in own} for own in (ended, moved))
    first = done[0]
    metric = first.curve.metric
    contests = []
    for count in nodes:
        for method, own in trials.items():
            tried = tuple(_tried(trial, count, by_key, replayed, judge) for trial in own)
            contests.append(Contest(method=method, nodes=count, tried=tried, best=best(tried, metric)))
    return Judgement(
        contests=tuple(contests),
        metric=metric,
        header=first.header,
        problems=tuple(problems),
        error=evaluation_error(done, []),
        unreadable=tuple(unreadable),
    )


def _tried(trial: Trial, nodes: int, ended: Mapping[str, Run], replayed: Mapping[str, Run], judge: Judge) -> Tried:
    key = key_of(trial.method, nodes, trial.settings)
    run = ended.get(key)
    if run is not None and run.diverged:
        return Tried(trial=trial, cell=run.header.cell)
    if run is None or not run.done:
        return Tried(trial=trial, failed=True)
    reached = judge.target is not None and run.reached(judge.target) is not None
    if reached and key not in replayed:
        # It stopped at the target, so its last metric is that of a shorter training.
        return Tried(trial=trial, cell=run.header.cell, failed=True)
    there = replayed[key].reached(judge.target) if key in replayed and judge.target is not None else None
    return Tried(
        trial=trial,
        cell=run.header.cell,
        value=run.curve.final(),
        seconds=None if there is None else there.seconds,
    )


def _key(header: Header) -> str:
    return key_of(header.method, header.nodes, header.config.method_options)
