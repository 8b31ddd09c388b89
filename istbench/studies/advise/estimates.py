"""Step one of an advice: the memory and the seconds of a step of every method, from one recorded process.

One process trains a few steps. The plans count the operations of a step of each method: their ratio scales the
recorded seconds. Messages follow from the plan of the method. The replay of both on the cluster shows the methods
that can be first by their speed.
"""

import dataclasses
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.base.options.defaults import BASELINE
from istbench.base.options.run import RunRequest
from istbench.cluster.estimate import fits
from istbench.cluster.profile import ClusterProfile, at_bandwidth, at_latency
from istbench.cluster.this_machine import nodes_like
from istbench.cluster.trace import Trace, TraceMeta
from istbench.methods.base import Method
from istbench.node.machine_speed import device_memory
from istbench.node.registry import build_workload, load_method
from istbench.plan.planned_cell import CannotPlan, PlannedCell
from istbench.plan.planner import planned_memory
from istbench.plan.script_time import steady_step
from istbench.studies.advise.seconds import mean_step_s
from istbench.studies.advise.variant import EstimatedVariant, Variant, mark_slow

_GIB = 2**30
# Two processes of one machine exchange about this many bits in a second.
_LOOPBACK = 8e9
_TRACED_STEPS = 20
_FACTORS = (4, 16)  # of the default local steps of a round
_ACCUMULATED = (2, 4, 8, 16, 32)
# A round is long enough for the network if its nodes compute this share of the time; longer ones learn less.
_COMPUTING, _ACCUMULATING = 0.9, 0.5


def _usual_place(kind: type[Method]) -> int:
    """The `usual_place` that `kind` names itself: few people try `sparseloco` first, though it extends `diloco`."""
    return int(vars(kind).get("usual_place", Method.usual_place))


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """A step that a node computed on this machine: the trace, and the seconds and operations of a step."""

    meta: TraceMeta
    step_s: float
    operations: float | None

    @classmethod
    def of(cls, trace: Trace, cell: PlannedCell | None) -> "RecordedStep":
        """The step in `trace` of `cell`; without the cell no other step has known seconds."""
        # A planned trace has no warm-up, and one of another length of a round may not have that of `trace`.
        meta = msgspec.structs.replace(trace.meta, warmup_steps=0, warmup_state=0, unlike_steps=0)
        return cls(meta=meta, step_s=mean_step_s(trace), operations=cell.operations if cell else None)


def nodes_like_here(
    recorded: TraceMeta, *, bandwidth: float | None, latency_s: float | None, crowd: float = 1.0
) -> ClusterProfile:
    """Nodes as fast as the process that recorded `recorded`, on links of `bandwidth` bits/s.

    The costs of messages are those of the default cluster. crowd: nodes on each of this machine's cores.
    """
    memory = device_memory(torch.device(recorded.device or "cpu"))
    like = nodes_like(recorded, name="machines like this one", memory=memory, crowd=crowd)
    there = like if latency_s is None else at_latency(like, latency_s)
    return at_bandwidth(there, bandwidth or like.bandwidth_out / like.payload)


class StepEstimates:
    """Estimates memory and step seconds of variants of methods, for the cell of `base` on `cluster`.

    Args:
        base: a request on the question's nodes; its method and its method options do not count.
        given: the method options that the user set, by method.
    """

    def __init__(
        self,
        base: RunRequest,
        recorded: RecordedStep,
        cluster: ClusterProfile,
        given: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._base, self._recorded, self._cluster, self._given = base, recorded, cluster, given
        threads = recorded.meta.threads or 1
        crowd = max(1.0, base.nodes * threads / cores()) if recorded.meta.device != "cuda" else 1.0
        self._here = nodes_like_here(recorded.meta, bandwidth=_LOOPBACK / crowd, latency_s=None, crowd=crowd)

    def all_variants(self, methods: Iterable[str]) -> list[EstimatedVariant]:
        """Every variant of `methods`, with a reason for each that cannot be first by its memory or speed."""
        found = [
            dataclasses.replace(one, usual_place=_usual_place(load_method(method, self._base.plugins)))
            for method in methods
            for one in self._of_method(method)
        ]
        # A schedule changes what a step learns, so speed alone orders those with one, and those without.
        groups = [[one for one in found if one.variant.scheduled == scheduled] for scheduled in (False, True)]
        return [one for group in groups for one in mark_slow(group)]

    def _of_method(self, method: str) -> Iterator[EstimatedVariant]:
        given = self._given.get(method, {})
        kind = load_method(method, self._base.plugins)
        plainest, rounds = method == BASELINE, kind.round_option
        plain = self.estimated(self._variant(method, given, baseline=plainest))
        yield plain
        if plain.why_not:
            return
        schedule = plain.variant.own_schedule(self._base).get("schedule")
        if schedule and _usual_place(kind) < Method.usual_place:  # a method that most people try
            yield self.estimated(self._variant(method, {**given, "schedule": schedule}))
        if plainest and rounds not in given:
            yield self._first_computing(
                [self._variant(method, {**given, rounds: n}, baseline=True) for n in _ACCUMULATED], _ACCUMULATING
            )
        for name in kind.message_options if plainest else ():
            for choice in _choices(kind.Options, name) if name not in given else ():
                yield self.estimated(self._variant(method, {**given, name: choice}))
        local = rounds and rounds not in given and not kind.joint_rounds
        if local and plain.computing is not None and plain.computing < _COMPUTING:
            yield self._first_computing(
                [self._variant(method, {**given, rounds: factor * plain.round_steps}) for factor in _FACTORS],
                _COMPUTING,
            )

    def _variant(self, method: str, options: Mapping[str, Any], *, baseline: bool = False) -> Variant:
        return Variant(method=method, options=options, baseline=baseline, plugins=self._base.plugins)

    def _first_computing(self, variants: Sequence[Variant], share: float) -> EstimatedVariant:
        """The first of `variants`, which have ever longer rounds, whose nodes compute `share` of the time."""
        found = self.estimated(variants[0])
        for variant in variants[1:]:
            if found.why_not or (found.computing is not None and found.computing >= share):
                break
            found = self.estimated(variant)
        return found

    def estimated(self, variant: Variant) -> EstimatedVariant:
        """`variant` with its memory and its seconds, as far as they are known."""
        try:
            found = self._fitted(variant)
            if found.why_not:
                return found
            cell = PlannedCell.of(planned_request(variant, self._base, self._base.nodes))
        except CannotPlan:
            return found
        except UserError as error:
            return EstimatedVariant(variant=variant, why_not=str(error))
        found = dataclasses.replace(found, round_steps=cell.method.round_steps, cell=cell)
        try:
            trace = self._trace(cell, self._recorded)
            there, step_s = steady_step(trace, self._cluster)
            _, here_s = steady_step(trace, self._here)
        except UserError:
            return found
        return dataclasses.replace(found, step_s=step_s, computing=there.compute, here_s=here_s, trace=trace)

    def _fitted(self, variant: Variant) -> EstimatedVariant:
        """`variant` with its memory, by the plan of `istbench plan`; also of a method whose rounds have none."""
        cluster = self._cluster
        memory = planned_memory(planned_request(variant, self._base, self._base.nodes), cluster)
        if memory is None:
            return EstimatedVariant(variant=variant)
        fit = fits(memory, int(cluster.memory_gib * _GIB))
        has = f"of a node that has {cluster.memory_gib:.3g}"
        return EstimatedVariant(
            variant=variant,
            memory_bytes=memory.total if memory.complete else None,
            fits=fit,
            why_not=f"needs {memory.total / _GIB:.3g} GiB {has}" if fit is False else "",
        )

    def planned(self, variant: Variant, nodes: int, recorded: RecordedStep | None = None) -> Trace:
        """The trace of `variant` on `nodes` nodes, from sizes.

        recorded: a step of a variant that computes as this one does; default: that of one process.

        Raises:
            UserError: if the method cannot train there, or its rounds do not follow from sizes.
        """
        return self._trace(PlannedCell.of(planned_request(variant, self._base, nodes)), recorded or self._recorded)

    def _trace(self, cell: PlannedCell, recorded: RecordedStep) -> Trace:
        if not recorded.operations:
            raise CannotPlan("the operations of the recorded step are unknown")
        return cell.trace(recorded.meta, recorded.step_s * cell.operations / recorded.operations, _TRACED_STEPS)


def planned_request(variant: Variant, base: RunRequest, nodes: int) -> RunRequest:
    """The cell of `base` by `variant`, to plan. It names data only where they set the sizes of the model."""
    sized = build_workload(base.workload, base.workload_options, base.plugins).sized_by_data
    return msgspec.structs.replace(
        base,
        method=variant.method,
        method_options=variant.options,
        nodes=nodes,
        data=base.data if sized else None,
    )


def _choices(options: type, name: str) -> list[str]:
    """The values other than its default of option `name`, a text with few choices."""
    kind = typing.get_type_hints(options)[name]
    default = next(option.default for option in dataclasses.fields(options) if option.name == name)
    return [value for value in typing.get_args(kind) if isinstance(value, str) and value != default]
