"""Step two of an advice: train the few methods that can be first, for real, within the minutes."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from istbench.base.errors import RunFailed, UserError, clipped, is_divergence
from istbench.base.machine import cores
from istbench.base.options.defaults import BASELINE
from istbench.base.options.interval import Interval
from istbench.base.options.run import RunRequest
from istbench.base.options.texts import message_of
from istbench.base.units import clock
from istbench.cluster.clock import cluster_time
from istbench.cluster.trace import Trace
from istbench.cluster.trace_file import load_trace
from istbench.launch.backends.backend import Backend, OncePerLine, Screen
from istbench.launch.cells.resolve import prepare_cell
from istbench.node.registry import load_method
from istbench.plan.planned_cell import PlannedCell
from istbench.plan.redeal import redeal
from istbench.report.phrases import joined
from istbench.report.tables.numbers import number
from istbench.results.curves import Curve
from istbench.results.header import Header
from istbench.results.load import Run, load_run
from istbench.results.on_cluster import own_checks, run_on_cluster
from istbench.results.store import RunDirectory
from istbench.studies.advise.candidate import NO_TIME, ONE_NODE, Candidate, Redealt, SharedOptions
from istbench.studies.advise.estimates import RecordedStep, StepEstimates, planned_request
from istbench.studies.advise.halving import FINALISTS, LEAST_STEPS, LONGER, Cost, Halving, Rung, affordable
from istbench.studies.advise.journal import Journal, ProbeFailed, ProbeTrained, RungStarted, StepRecorded
from istbench.studies.advise.odds import odds, worth_probing
from istbench.studies.advise.one_node import level_of, too_short
from istbench.studies.advise.question import Probed, Question
from istbench.studies.advise.seconds import at_mean_pace
from istbench.studies.advise.signed_curve import continued, ends_of
from istbench.studies.advise.time_limit import TimeUp, at_most
from istbench.studies.advise.variant import (
    EstimatedVariant,
    Variant,
    had_constant_rate,
    longest_alike,
    shortlist,
    tell_seconds_of,
)

_RECORDED_STEPS, _BETWEEN, _RECORDED_S = 24, 8, 20.0
_STOPPING_S = 10.0
_STOPPING_SHARE = 0.05  # of the time, where that is shorter
_LATER_START = 0.25  # of the seconds of the first start, in which the fork server imports
_UNPLANNED = 1.5  # seconds of a step of unknown speed over those of one process on as many cores
_ONE_NODE_SHARE = 0.2  # of the time
_DRAWS = 1000  # of the odds between two rungs


def probe(
    question: Question,
    backend: Backend,
    out: Path,
    screen: Screen,
    *,
    seconds: float,
    answer_s: float,
    started: float,
    replaying: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Probed:
    """Estimate and train the methods of `question` in `seconds`, of which the last `answer_s` stay for the answer.

    started: `time.monotonic()` at the start of the command. replaying: surrounds replays that may take long.

    Raises:
        UserError: for a name, an option, data or a target that cannot work.
        RunFailed: if the recorded process fails.
        KeyboardInterrupt: after Ctrl-C. All finished probes are kept.
    """
    journal = Journal.of(out, question.as_json())
    until = started + seconds - journal.spent_s - answer_s
    probing = _Probing(question, backend, out, screen, journal, seconds, started=started, until=until)
    try:
        return probing.run(replaying)
    finally:
        with suppress(UserError):
            journal.spend(probing.spent_s())


def recorded_variant(given: Mapping[str, Mapping[str, Any]]) -> Variant:
    """`ddp` with its options in `given` that change what a step computes, so every step is a whole round."""
    ddp = load_method(BASELINE)
    exchanging = {ddp.round_option, *ddp.message_options}
    kept = {name: value for name, value in given.get(BASELINE, {}).items() if name not in exchanging}
    return Variant(method=BASELINE, options=kept)


class ProbeFailures:
    """The failures of probes. Where another seed of a candidate trained, one that diverged is a miss of its seed.

    Attributes:
        reasons: why candidates failed, by label. diverged: their seeds that diverged.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.diverged: dict[str, set[int]] = {}

    def add(self, label: str, seed: int, reason: str, trained: Set[int]) -> None:
        """`seed` of `label` failed for `reason`; seeds `trained` did not."""
        diverged = self.diverged.setdefault(label, set())
        if is_divergence(reason):
            diverged.add(seed)
        if not is_divergence(reason) or trained <= diverged:
            self.reasons[label] = reason

    def has(self, label: str, seed: int | None = None) -> bool:
        """Whether `label` failed, or `seed` of it."""
        return label in self.reasons or seed in self.diverged.get(label, ())


class _Probing:
    """Implements `probe`; a `ProbeTrainer` of the halving. started, until: monotonic times of the probes."""

    def __init__(
        self,
        question: Question,
        backend: Backend,
        out: Path,
        screen: Screen,
        journal: Journal,
        seconds: float,
        *,
        started: float,
        until: float,
    ) -> None:
        self._question, self._backend, self._out, self._screen = question, backend, out, OncePerLine(screen)
        self._started, self._until, self._seconds = started, until, seconds
        self._journal = self._probes = journal
        self._stopping_s = min(_STOPPING_S, _STOPPING_SHARE * seconds)
        threads = question.base.threads or max(1, cores() // question.base.nodes)
        self._base = msgspec.structs.replace(question.base, threads=threads)
        self._runs: dict[str, dict[tuple[int, int], Run]] = {}  # by label, steps and seed
        self._failures = ProbeFailures()
        self._step_one = recorded_variant(question.given)
        self._costs: dict[str, Cost] = {}
        self._begun: dict[str, int] = {}  # the places of the labels in the order of their first probes
        self._data = ""  # the fingerprint of the data of step one
        self._resumed = True  # whether an earlier command recorded step one

    def spent_s(self) -> float:
        """Seconds of this command."""
        return time.monotonic() - self._started

    def _reached_by_one_node(self) -> tuple[float, float]:
        curve = self._one_curve
        found = level_of(curve)
        if found is None:
            best = curve.best()
            said = "no number" if best is None else f"no better than {best:.4g}"
            raise UserError(
                f"one node learned nothing that tells methods apart: {curve.metric.name} of {self._base.workload} "
                f"was {said} in {curve.evaluations[-1].step:,} local steps; give more --minutes, "
                "another --set lr, or --target"
            )
        return found

    def run(self, replaying: Callable[[], AbstractContextManager[object]]) -> Probed:
        recording, cost = self._record()
        recorded = self._recorded(recording)
        self._profile = self._question.profile(recorded)
        self._one_node = self._train_one_node(cost) or recording
        self._check_data(self._one_node.header)
        self._one_curve = self._one_node.curve
        if self._one_node is not recording and had_constant_rate(recording.header.config):
            self._one_curve = continued(recording.curve, self._one_curve, self._base.target)
        target, target_from, early = self._base.target, "", ""
        if target is None:
            target, reached_s = self._reached_by_one_node()
            target_from = f"which one node reached in {number(reached_s)} s here"
            early = too_short(self._one_curve, self._seconds / 60)
            # Probes end at the target, so those of another target are others.
            self._probes = Journal.of(self._out, [self._question.as_json(), target])
        elif (reached := self._one_curve.reached(target)) is not None and reached.step == 0:
            raise UserError(f"the model is at the target of {target:g} before it trains; give a harder --target")
        self._target = target
        self._estimates = StepEstimates(self._base, recorded, self._profile, self._question.given)
        with replaying():
            estimated = self._estimates.all_variants(self._question.methods)
        self._by_label = {one.variant.label: one for one in estimated}
        crowd = max(1.0, self._base.nodes * (recorded.meta.threads or 1) / cores())
        self._first_cost = dataclasses.replace(
            cost, start_s=_LATER_START * cost.start_s, step_s=_UNPLANNED * crowd * cost.step_s
        )
        self._few = few = shortlist(estimated)
        self._shared = SharedOptions.of(one.variant.label for one in few)
        throughout = f", all with {self._shared.words}" if self._shared.words else ""
        count = f"{len(few)} of {len(estimated)} candidates"
        self._screen.note(f"step two: {count} can be first by their speed there{throughout}")
        for one in few:
            self._screen.note(f"  {self._shared.without(estimate_line(one))}")
        earlier = [rung for rung in self._probes.rungs if {*rung.labels} <= self._by_label.keys()]
        halving = Halving(
            [one.variant.label for one in few],
            self,
            self._target,
            plan=lambda rung: self._probes.add(RungStarted(rung=rung)),
            earlier=earlier,
            most_seeds=self._question.seeds,
            least=sum(one.variant.baseline for one in few) + FINALISTS,
        )
        halving.run()
        candidates = (self._candidate(one, halving.stopped) for one in estimated)
        return Probed(
            question=self._question,
            candidates=(self._alone(), *candidates),
            profile=self._profile,
            metric=recording.curve.metric,
            target=self._target,
            target_from=target_from,
            early=early,
            data=recording.header.data_source.seen,
        )

    # Step one.

    def _record(self) -> tuple[Run, Cost]:
        """One process's run of a few steps, and what it cost."""
        # A finished one is read without a limit: a command whose minutes are spent still answers.
        recorded = self._done(self._journal.recorded)
        if recorded is not None:
            self._data = recorded.header.data_source.fingerprint
            return recorded, cost_of(recorded, None)
        request = self._step_one.of(
            self._base,
            nodes=1,
            steps=_RECORDED_STEPS,
            eval_every=Interval(steps=_BETWEEN),
            max_seconds=_RECORDED_S,
            target=None,
            seed=0,
        )
        self._screen.note("step one: recording the step of one process")
        began = time.monotonic()
        try:
            run, fresh = self._run(request, self._until - began)
        except TimeUp:
            raise UserError(
                f"the time is up before the step of one process is recorded: {self.spent_s():.0f} s passed; "
                "give more --minutes"
            ) from None
        self._data = run.header.data_source.fingerprint
        self._resumed = False
        self._journal.add(StepRecorded(cell=run.header.cell))
        self._journal.spend(self.spent_s())
        return run, cost_of(run, time.monotonic() - began if fresh else None)

    def _run(self, request: RunRequest, seconds: float, *, compare_data: bool = False) -> tuple[Run, bool]:
        """The run of `request`, trained in at most `seconds`, and whether this command trained it.

        compare_data: refuse other data than those of step one before it trains.

        Raises:
            TimeUp: if the seconds are too few.
        """
        with at_most(seconds, stopping_s=self._stopping_s):
            if compare_data:
                self._check_data(prepare_cell(request, self._screen.preparing))
            (outcome,) = self._backend.run([request], self._out, False, self._screen)
            return load_run(outcome.finished()), outcome.fresh

    def _recorded(self, run: Run) -> RecordedStep:
        try:
            cell = PlannedCell.of(planned_request(self._step_one, self._base, 1))
        except UserError:
            cell = None
        return RecordedStep.of(load_trace(run.directory.trace), cell)

    def _train_one_node(self, cost: Cost) -> Run | None:
        """One node's run on its share of the time, which ends at a given target; None if there is no time for it.

        An earlier command's run counts, unless this one has time for a longer one.
        """
        steps, evaluations = affordable(min(_ONE_NODE_SHARE * self._seconds, self.left_s()), [cost])
        earlier = [place for place in self._journal.cells if place[0] == ONE_NODE]
        longest = max(earlier, default=None)
        before = self._done(self._journal.cells[longest]) if longest else None
        if steps < LEAST_STEPS or (before and longest and steps < LONGER * longest[1]):
            return before
        request = self._step_one.of(
            self._base, nodes=1, steps=steps, eval_every=Interval(steps=-(-steps // evaluations)), seed=0
        )
        self._screen.note(f"one node alone, {clock(self.left_s())} left: {steps:,} local steps")
        try:
            run, _ = self._run(request, self.left_s(), compare_data=self._resumed)
        except TimeUp:
            return before
        self._journal.add(ProbeTrained(label=ONE_NODE, steps=steps, seed=0, cell=run.header.cell))
        self._journal.spend(self.spent_s())
        return run

    # Step two: the methods of `ProbeTrainer`.

    def left_s(self) -> float:
        return self._until - time.monotonic() - self._stopping_s

    def failed(self, label: str, seed: int | None = None) -> bool:
        """Whether probes of `label` failed; see `ProbeTrainer.failed`."""
        return self._failures.has(label, seed)

    def _fail(self, label: str, seed: int, reason: str) -> None:
        self._failures.add(label, seed, reason, {own for _, own in self._runs.get(label, {})})

    def cost(self, label: str) -> Cost:
        """The cost of the last probe of `label`; before the first one, the planned seconds of a step."""
        if label in self._costs:
            return self._costs[label]
        planned = self._by_label[label].here_s
        return self._first_cost if planned is None else dataclasses.replace(self._first_cost, step_s=planned)

    def favourites(self) -> Sequence[str]:
        """The labels that are worth the longest probe, after those so far; see `ProbeTrainer.favourites`."""
        if self.left_s() <= 0:
            return []
        candidates = [self._alone(), *(self._candidate(one, {}) for one in self._few)]
        checks, _ = own_checks(self._out)
        found = odds(candidates, self._profile, self._target, checks=checks, draws=_DRAWS)
        plain = [one.variant for one in self._few if one.variant.method == BASELINE and one.variant.joint_steps]
        labels = worth_probing(found, [one.label for one in plain if not self.failed(one.label)])
        return [label for label in labels if label != ONE_NODE and not self._learned_as_another(label)]

    def _learned_as_another(self, label: str) -> bool:
        """Whether a probe gave the seconds of `label`, and one of `ddp` how it learns: nothing is left to probe."""
        return label in self._runs and self._probed_as(self._by_label[label]) != label

    def train(self, label: str, rung: Rung, seed: int) -> Curve | None:
        """Train a probe, or read it if it is finished; see `ProbeTrainer.train`."""
        run = self._done(self._probes.cells.get((label, rung.steps, seed)))
        if run is None:
            run = self._train(label, rung, seed)
        else:
            self._check_data(run.header)
            if label not in self._costs:
                self._costs[label] = dataclasses.replace(cost_of(run, None), start_s=self._first_cost.start_s)
        if run is None:
            return None
        self._runs.setdefault(label, {})[rung.steps, seed] = run
        try:
            return self._on_cluster(label, run)
        except UserError as error:
            self._failures.reasons[label] = str(error)
            return None

    def _done(self, cell: str | None) -> Run | None:
        """The run of `cell`, which the journal names; None if it is not there, or not done."""
        if cell is None:
            return None
        with suppress(UserError):
            run = load_run(RunDirectory.of(self._out, cell))
            return run if run.done else None
        return None

    def _train(self, label: str, rung: Rung, seed: int) -> Run | None:
        began, known = time.monotonic(), bool(self._costs)
        if self.left_s() <= 0 or (known and self.cost(label).seconds(1, 1) > self.left_s()):
            before = self._probes.failures.get((label, rung.steps, seed))
            if before is not None:  # with time, it is tried again
                self._fail(label, seed, before)
            return None
        self._begun.setdefault(label, len(self._begun) + 1)
        place = f"candidate {self._begun[label]} of {len(self._few)}, {clock(self.left_s())} left: "
        self._screen.note(candidate_line(place, self._shared.without(label), rung.steps, seed))
        request = self._by_label[label].variant.of(
            self._base,
            seed=seed,
            steps=rung.steps,
            eval_every=Interval(steps=rung.every),
            target=self._target,
        )
        try:
            run, fresh = self._run(request, self.left_s())
        except TimeUp:
            self._screen.note(f"the time is up: {label} stopped with a checkpoint")
            return None
        except (UserError, RunFailed) as error:
            reason = str(error).splitlines()[0]
            self._fail(label, seed, reason)
            self._screen.note(f"{label}: {reason}")
            self._probes.add(ProbeFailed(label=label, steps=rung.steps, seed=seed, reason=message_of(reason)))
            return None
        if fresh:
            self._costs[label] = found = cost_of(run, time.monotonic() - began)
            self._first_cost = dataclasses.replace(
                self._first_cost, start_s=found.start_s, evaluation_s=found.evaluation_s
            )
        self._check_data(run.header)
        self._probes.add(ProbeTrained(label=label, steps=rung.steps, seed=seed, cell=run.header.cell))
        self._journal.spend(self.spent_s())  # kill -9 loses the time of one probe at most
        return run

    def _check_data(self, header: Header) -> None:
        if header.data_source.fingerprint != self._data:
            journals = joined(list(dict.fromkeys(str(one.path) for one in (self._journal, self._probes))))
            raise UserError(
                f"the data have changed since step one; delete {journals} to probe again, or restore them"
            )

    def _on_cluster(self, label: str, run: Run) -> Curve:
        if run.directory.trace.exists():
            return run_on_cluster(run, self._load(run), self._profile).curve
        planned = self._planned(self._by_label[label])
        if planned is None:
            raise UserError("no trace to replay: a probe has less than two whole rounds")
        steps = [at.step for at in run.curve.evaluations]
        seconds = cluster_time(planned(self._base.nodes), self._profile, steps).seconds
        return run.curve.on_clock("cluster_s", seconds)

    def _load(self, run: Run) -> Trace:
        return self._profile.seen(load_trace(run.directory.trace))

    # The candidates.

    def _own_curves(self, label: str) -> dict[int, Curve]:
        """The curve of each seed of `label`: of its last probe, with the evaluations of those before it.

        At a constant rate they are parts of one training. With a schedule, only their ends tell of longer ones.
        """
        found: dict[int, Curve] = {}
        for (_, seed), run in self._runs.get(label, {}).items():
            if seed in self._failures.diverged.get(label, ()):
                continue
            constant = had_constant_rate(run.header.config)
            there = run.reached(self._target) is not None
            own = run.curve if constant or there else ends_of(run.curve)
            before = found.get(seed)
            found[seed] = own if before is None else continued(before, own, self._target)
        return found

    def _probed_as(self, one: EstimatedVariant) -> str:
        """The label whose probes tell how `one` learns."""
        label = one.variant.label
        if one not in self._few or self.failed(label):
            return label
        trained = [
            (self._by_label[other].variant, max(steps for steps, _ in runs)) for other, runs in self._runs.items()
        ]
        return longest_alike(one.variant, trained)

    def _alone(self) -> Candidate:
        """One node, which trains as a plain loop does."""
        variant, run = self._step_one, self._one_node
        planned = self._by_label.get(Variant(method=BASELINE, options=variant.options).label)
        return Candidate(
            method=BASELINE,
            label=ONE_NODE,
            options=dict(variant.options),
            command=self._command(variant, [run], nodes=1),
            curves={0: self._one_curve},
            trace=self._load(run),
            memory_bytes=planned.memory_bytes if planned else None,
            baseline=True,
            nodes=1,
        )

    def _candidate(self, one: EstimatedVariant, after: Mapping[str, int]) -> Candidate:
        """`one` as its probes so far tell. after: the local steps of those that were stopped, by label."""
        label = one.variant.label
        trace, redealt = self._trace(one)
        probed = self._probed_as(one)
        curves = self._own_curves(probed)
        learns_as = "" if label in self._runs or probed == label else probed
        stopped = ""
        if after.get(label):
            stopped = f"behind after {after[label]:,} local steps"
        elif one not in self._few:
            stopped = one.why_not
        elif label not in self._runs and not learns_as:
            stopped = NO_TIME
        unable = one.why_not if one.fits is False or one.cell is None else ""
        return Candidate(
            method=one.variant.method,
            label=label,
            options=dict(one.variant.options),
            command=self._command(one.variant, longest_by_seed(self._runs.get(probed, {}))),
            curves=curves,
            trace=trace,
            memory_bytes=one.memory_bytes,
            baseline=one.variant.baseline,
            diverged=len(self._failures.diverged.get(probed, ())) if curves else 0,
            learns_as=learns_as,
            stopped="" if self.failed(label) or unable else stopped,
            failed=self._failures.reasons.get(label, unable),
            redealt=redealt,
        )

    def _trace(self, one: EstimatedVariant) -> tuple[Trace | None, Redealt | None]:
        """The trace of the probes, else the planned one, and its nodes dealt again."""
        traced = self._traced(one.variant.label)
        if traced is not None:
            run, trace = traced
            return trace, partial(_dealt, run, trace, self._base.plugins)
        planned = self._planned(one)
        return (None, None) if planned is None else (planned(self._base.nodes), planned)

    def _planned(self, one: EstimatedVariant) -> Redealt | None:
        """Gives the trace of `one` from sizes. None if its rounds do not follow from them.

        Its steps take the seconds that probes recorded of a variant that computes as it does, else in proportion to
        those of `ddp`. The operations alone leave out what does not shrink with the layers, such as the making of a
        minibatch; and a step of one process, recorded alone, is shorter than those of all nodes at once.
        """
        if one.trace is None:
            return None
        recorded = (
            RecordedStep.of(traced[1], other.cell)
            for other in tell_seconds_of(one.variant, self._by_label.values(), self._step_one)
            if other.cell is not None and (traced := self._traced(other.variant.label)) is not None
        )
        return partial(self._estimates.planned, one.variant, recorded=next(recorded, None))

    def _traced(self, label: str) -> tuple[Run, Trace] | None:
        """The longest probe of `label` that recorded a trace, and that trace at the mean pace of all of them."""
        runs = self._runs.get(label, {})
        traced = [runs[place] for place in sorted(runs, reverse=True) if runs[place].directory.trace.exists()]
        if not traced:
            return None
        traces = [self._load(run) for run in traced]
        return traced[0], traces[0] if self.failed(label) else at_mean_pace(traces, self._profile)

    def _command(self, variant: Variant, runs: Sequence[Run], **fields: Any) -> tuple[str, ...]:
        """The command that trains `variant` to the target: as the last of `runs`, one a seed, if all got there."""
        there = [run.reached(self._target) is not None for run in runs]
        if there and all(there):
            config = runs[-1].header.config
            fields = {"steps": config.steps, "eval_every": config.eval_every, **fields}
        request = variant.of(self._question.base, target=self._target, seed=0, **fields)
        return ("istbench", *request.arguments())


def longest_by_seed(runs: Mapping[tuple[int, int], Run]) -> list[Run]:
    """The longest of `runs`, by steps and seed, of each seed; the longest of all is the last."""
    most = {seed: steps for steps, seed in sorted(runs)}
    return [runs[place] for place in sorted((steps, seed) for seed, steps in most.items())]


def cost_of(run: Run, wall_s: float | None) -> Cost:
    """The cost of `run`, which took `wall_s` with its start; None if it was finished before."""
    evaluations = run.curve.evaluations
    last = evaluations[-1]
    pauses = [
        max(0.0, (after.wall_s - before.wall_s) - (after.train_s - before.train_s))
        for before, after in pairwise(evaluations)
    ]
    evaluation = sum(pauses) / len(pauses) if pauses else 0.0
    inside = last.train_s + len(evaluations) * evaluation
    # A run that an earlier command began has trained longer than this one took.
    whole = wall_s if wall_s is not None and wall_s > inside else last.wall_s
    return Cost(
        start_s=max(0.5, whole - inside),
        evaluation_s=evaluation,
        step_s=max(1e-6, last.train_s / max(1, last.step)),
    )


def candidate_line(place: str, label: str, steps: int, seed: int) -> str:
    """`candidate 3 of 12, 1:40 left: ist, 800 local steps`, in at most 80 characters."""
    length = f", {steps:,} local steps{f', seed {seed}' if seed else ''}"
    return f"{place}{clipped(label, 80 - len(place) - len(length))}{length}"


def estimate_line(one: EstimatedVariant) -> str:
    """One line about a variant to train."""
    if one.step_s is None or one.computing is None:
        return f"{one.variant.label}: its speed there is unknown before it trains"
    return f"{one.variant.label}: {number(one.step_s * 1e3)} ms a local step there, computing {one.computing:.0%}"


def _dealt(run: Run, trace: Trace, plugins: tuple[str, ...], nodes: int) -> Trace:
    return redeal(run, trace, nodes, plugins)[1]
