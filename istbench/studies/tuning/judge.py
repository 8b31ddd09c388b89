"""From the runs of the trials to their judgement."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from istbench.base.errors import UserError, is_divergence
from istbench.cluster.profile import ClusterProfile
from istbench.report.targets import EvaluationError, evaluation_error
from istbench.results.header import Header
from istbench.results.load import Run, load_run
from istbench.results.metrics import Metric, level_text
from istbench.results.on_cluster import runs_on_clusters
from istbench.results.store import RunDirectory
from istbench.studies.tuning.trials import Trial, Tried, best, key_of


@dataclass(frozen=True, kw_only=True)
class Judge:
    """The judge of the trials: the metric at their end, or seconds to `target` on `cluster`."""

    target: float | None = None
    cluster: ClusterProfile | None = None

    @property
    def by_seconds(self) -> bool:
        return self.target is not None and self.cluster is not None

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
    diverged, done, unreadable = dict[str, str](), dict[str, Run](), list[str]()
    for directory in runs:
        try:
            header = directory.header()
            if is_divergence(header.error):
                diverged[_key(header)] = header.cell
            elif header.status == "done":
                done[_key(header)] = load_run(directory)
        except UserError as damage:
            unreadable.append(str(damage))
    if not done and unreadable:
        raise UserError(unreadable[0])
    if not done:
        return None
    replayed, problems = dict[str, Run](), list[str]()
    if judge.cluster is not None and judge.by_seconds:
        (moved,), problems = runs_on_clusters(list(done.values()), [judge.cluster])
        replayed = {_key(run.header): run for run in moved}
    first = next(iter(done.values()))
    metric = first.curve.metric
    contests = []
    for count in nodes:
        for method, own in trials.items():
            tried = tuple(_tried(trial, count, done, diverged, replayed, judge) for trial in own)
            contests.append(Contest(method=method, nodes=count, tried=tried, best=best(tried, metric)))
    return Judgement(
        contests=tuple(contests),
        metric=metric,
        header=first.header,
        problems=tuple(problems),
        error=evaluation_error(list(done.values()), []),
        unreadable=tuple(unreadable),
    )


def _tried(
    trial: Trial,
    nodes: int,
    done: Mapping[str, Run],
    diverged: Mapping[str, str],
    replayed: Mapping[str, Run],
    judge: Judge,
) -> Tried:
    key = key_of(trial.method, nodes, trial.settings)
    if key in diverged:
        return Tried(trial=trial, nodes=nodes, cell=diverged[key])
    if key not in done:
        return Tried(trial=trial, nodes=nodes, failed=True)
    run = done[key]
    reached = judge.target is not None and run.reached(judge.target) is not None
    if judge.by_seconds and reached and key not in replayed:
        # It stopped at the target, so its last metric is that of a shorter training.
        return Tried(trial=trial, nodes=nodes, cell=run.header.cell, failed=True)
    there = replayed[key].reached(judge.target) if key in replayed and judge.target is not None else None
    return Tried(
        trial=trial,
        nodes=nodes,
        cell=run.header.cell,
        value=run.curve.final(),
        seconds=None if there is None else there.seconds,
    )


def _key(header: Header) -> str:
    return key_of(header.method, header.nodes, header.config.method_options)
