"""The question that `istbench advise` answers, and the candidates after its probes."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from istbench.base.decode import encode_own
from istbench.base.errors import UserError
from istbench.base.options.interval import Interval
from istbench.base.options.run import RunRequest
from istbench.cluster.profile import ClusterProfile
from istbench.node.registry import build_method, build_workload, code_of, load_method
from istbench.report.phrases import count_threads, joined
from istbench.results.metrics import Metric
from istbench.studies.advise.answer import Advice, RankedChoice
from istbench.studies.advise.candidate import Candidate, is_scheduled
from istbench.studies.advise.estimates import RecordedStep, nodes_like_here
from istbench.studies.advise.halving import MOST_EVALUATIONS
from istbench.studies.advise.variant import Variant

_LEAST, _MOST, _DIGITS = 1.5, 4.0, 2


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question of a user.

    Attributes:
        base: the cell on the nodes of the question; its method, steps and seed do not count.
        methods: the methods to choose from. given: options that the user set, by method.
        cluster: the nodes' cluster; None for nodes like this machine, at `bandwidth` bits/s and `latency_s`.
        seeds: at most so many of each method.
    """

    base: RunRequest
    methods: tuple[str, ...]
    given: Mapping[str, Mapping[str, Any]]
    cluster: ClusterProfile | None
    bandwidth: float | None
    latency_s: float | None
    seeds: int

    def as_json(self) -> Any:
        """A JSON value that differs for another question, and after a change in a task file or a plug-in."""
        cluster = None if self.cluster is None else dataclasses.asdict(self.cluster)
        plugins = self.base.plugins
        code = [code_of("workloads", self.base.workload, plugins)]
        code += [code_of("methods", method, plugins) for method in self.methods]
        return msgspec.to_builtins(
            [self.base, self.methods, self.given, cluster, self.bandwidth, self.latency_s, *filter(None, code)],
            enc_hook=encode_own,
        )

    def profile(self, recorded: RecordedStep) -> ClusterProfile:
        """The cluster of the question."""
        if self.cluster is not None:
            return self.cluster
        return nodes_like_here(recorded.meta, bandwidth=self.bandwidth, latency_s=self.latency_s)


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The candidates after both steps.

    Attributes:
        target: level of the metric. target_from, early: as in `Advice`.
        data: the data, in words.
    """

    question: Question
    candidates: tuple[Candidate, ...]
    profile: ClusterProfile
    metric: Metric
    target: float
    target_from: str
    early: str
    data: str

    def request(self, choice: RankedChoice) -> RunRequest:
        """The request that trains `choice` to the target, for at most `enough_steps`.

        It evaluates often in the steps that it should take, not in those that it may.
        """
        (one,) = (one for one in self.candidates if one.label == choice.label)
        steps = enough_steps(choice)
        if is_scheduled(one.options) and not choice.extrapolated:  # with others its rates would be others
            steps = _steps_of(choice.command) or steps
        every = Interval(steps=max(1, -(-_rounded_up(_LEAST * _expected(choice)) // MOST_EVALUATIONS)))
        return Variant(method=one.method, options=one.options).of(
            self.question.base,
            nodes=choice.nodes,
            target=self.target,
            steps=steps,
            eval_every=every,
            seed=0,
        )

    @property
    def not_tested(self) -> tuple[str, ...]:
        """Lines for the answer about this machine and these data."""
        threads = next((one.trace.meta.threads for one in self.candidates if one.trace), None) or 1
        base, plugins = self.question.base, self.question.base.plugins
        able = [one for one in self.candidates if not one.why_not]
        methods = dict.fromkeys(one.method for one in able)
        outer = [name for name in methods if load_method(name, plugins).control_nodes is not None]
        scheduled = {one.method for one in able if is_scheduled(one.options)}
        constant = {
            one.method
            for one in able
            if one.method not in scheduled
            and Variant(method=one.method, options=one.options, plugins=plugins).constant_rate(base)
        }
        lines = [f"Other data: the probes trained on {self.data}"]
        if constant:
            lines.append(f"The learning-rate schedule of {base.workload} with {joined(sorted(constant))}")
        if self.question.cluster is None:
            nodes = f"each node computes as fast as a probe's worker here, with {count_threads(threads)}"
            lines.append(f"Other nodes: {nodes}")
        if outer:
            lines.append(f"The controls of {joined(outer)} on one node: a gain may be that of the outer step")
        return tuple(lines)

    def with_steps(self, advice: Advice) -> Advice:
        """`advice` whose commands train long enough, where a probe ended before the target."""

        def longer(choice: RankedChoice) -> RankedChoice:
            if choice.why_not or not choice.extrapolated or choice.steps is None:
                return choice
            request = self.request(choice)
            return msgspec.structs.replace(choice, command=["istbench", *request.arguments()])

        return msgspec.structs.replace(
            advice,
            best=advice.best and longer(advice.best),
            others=tuple(longer(choice) for choice in advice.others),
        )


def check_given(question: Question) -> None:
    """Refuse a method option that every method with it refuses. One that suits some of them leaves out the rest.

    Raises:
        UserError: as the first of these methods does.
    """
    refused: dict[str, UserError | None] = {}
    base = question.base
    workload = build_workload(base.workload, base.workload_options, base.plugins)
    for method, given in question.given.items():
        refusal = None
        try:
            build_method(method, given, workload=workload, plugins=base.plugins)
        except UserError as error:
            refusal = error
        for option in given:
            refused[option] = refusal and refused.get(option, refusal)
    for refusal in filter(None, refused.values()):
        raise refusal


def enough_steps(choice: RankedChoice) -> int:
    """Local steps in which `choice` should reach the target: twice those of the slow end of its range, rounded up.

    One run in ten is slower than that end. Never more than four times as many as expected, so also for a range
    without an end. A run ends at the target, so steps to spare cost nothing if it gets there. A schedule spreads
    over all of them, so it gets those of the slow end, at most half as many again as expected.
    """
    slow = max(1.0, choice.high / choice.seconds) if choice.high and choice.seconds else _MOST
    factor = min(_LEAST, slow) if is_scheduled(choice.options) else min(_MOST, 2 * slow)
    return _rounded_up(factor * _expected(choice))


def _steps_of(command: Iterable[str]) -> int:
    """The `--steps` of `command`; 0 without them."""
    return next((int(one.removeprefix("--steps=")) for one in command if one.startswith("--steps=")), 0)


def _expected(choice: RankedChoice) -> float:
    return choice.steps or choice.steps_probed


def _rounded_up(steps: float) -> int:
    """`steps`, at least 1, with two digits."""
    steps = max(1.0, steps)
    unit: int = 10 ** max(0, math.floor(math.log10(steps)) + 1 - _DIGITS)
    return math.ceil(steps / unit) * unit
