"""A recorded step as a trace, and its seconds by some method, from the trace of its plan. Needs no torch."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from istbench.base.errors import UserError
from istbench.base.options.options import label_of, parse_pairs
from istbench.cluster.clock import ClusterTime, cluster_time
from istbench.cluster.estimate import most_sent
from istbench.cluster.in_turns import seen_on
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.replay_checks import replay_check
from istbench.cluster.script_record import ScriptRecord
from istbench.cluster.trace import Trace, round_ends
from istbench.cluster.trace_builder import TraceBuilder
from istbench.methods.planned_node import LEAST_STEPS, MOST_EVENTS, PlannedRounds, StepCost
from istbench.methods.size_plan import Sizes
from istbench.methods.size_plans import SIZE_PLANS
from istbench.plan.traced_node import TracedNode, UpdateCost, trace_like, trace_of_rounds

_MOST_STEPS = 100_000  # of a round; each of them has events of its own


def _computing_s(record: ScriptRecord) -> float:
    """Seconds of a recorded step without its update."""
    return max(0.0, record.step_s - record.update_s - record.before_update_s)


def step_cost(record: ScriptRecord) -> StepCost:
    """The recorded step, as the cost of a plan; its shares are those of the seconds without the update."""
    by_place = sorted(record.parameters, key=lambda parameter: parameter.place)
    parameters = [parameter for parameter in by_place if parameter.trained]
    whole = _computing_s(record) or 1.0

    def in_order(seconds: list[float | None], *, unseen: float) -> tuple[tuple[int, float], ...]:
        """Parameters by number, by rising share of the computing before their moment."""
        shares = [unseen if moment is None else min(1.0, moment / whole) for moment in seconds]
        return tuple(sorted(enumerate(shares), key=lambda pair: pair[1]))

    # A plan has no gradient before the forward pass has used all parameters. A second loss uses some later.
    first = min((parameter.ready_s for parameter in parameters if parameter.ready_s is not None), default=math.inf)
    used = [None if parameter.used_s is None else min(parameter.used_s, first) for parameter in parameters]
    peak, work = record.peak_bytes, record.machine.work
    return StepCost(
        # The peak is of the process, with its model and optimizer. A script that keeps its gradients through the
        # forward pass has them in the peak; most free them before, and have activations or gradients there.
        peak=None if peak is None else max(0, peak - record.model_bytes - record.state_bytes),
        batch=0,
        flops=work.operations if work else None,
        bytes=work.bytes if work else 0.0,
        uses=in_order(used, unseen=0.0),
        ready=in_order([parameter.ready_s for parameter in parameters], unseen=1.0),
    )


def trace_of_record(record: ScriptRecord, method: str, planned: PlannedRounds, nodes: int) -> Trace:
    """The trace of whole rounds of at least 4 local steps by `method`, which take the recorded seconds.

    Raises:
        UserError: for too many messages.
    """
    if planned.steps > _MOST_STEPS:
        raise UserError(
            f"{method} has {planned.steps:,} local steps in a round, a replay at most {_MOST_STEPS:,}; "
            "name fewer by local_steps or accumulate"
        )
    cost, seconds, memory = step_cost(record), [_computing_s(record)], record.machine.memory_gb_per_s
    update = UpdateCost(
        before_s=record.before_update_s,
        optimizer_s=record.update_s,
        # Adding reads two values and writes one.
        adding_s=3e-9 * record.gradient_bytes / memory if memory else 0.0,
    )
    return trace_of_rounds(
        method,
        planned,
        lambda rank: TracedNode(rank, nodes, cost, seconds, update),
        nodes,
        record.machine,
        LEAST_STEPS,
    )


def alone_trace(record: ScriptRecord) -> Trace:
    """The trace of the recorded process: a step without messages."""
    builder = TraceBuilder(lambda: 0.0)
    builder.compute(record.step_s)
    builder.mark("step")
    return trace_like(record.machine, [builder.to_arrays()], 1, None, 0)


_MOST_WHOLE = 2**40  # of a number as an option
_STEPS = 64
_SOON = 3  # rounds after which those that wait for all their messages take equally long
_EQUAL = 1e-7  # of their seconds


@dataclass(frozen=True, kw_only=True)
class ChosenMethod:
    """A method and its options, as typed."""

    name: str
    options: Mapping[str, Any]

    @property
    def label(self) -> str:
        """For a table: `local_sgd local_steps=40`."""
        return label_of(self.name, self.options)


@dataclass(frozen=True, kw_only=True)
class ScriptTime:
    """A step of a recorded script by a method on some nodes of a cluster.

    Attributes:
        method: with its options. step_s: seconds of a local step, exchanges included, in the steady state.
        local_steps: in a round, between two exchanges.
        alone_s: of a step of the fastest node alone there. sent: bytes that the busiest node sends in a local step.
        time: how the nodes spend the seconds.
    """

    method: str
    nodes: int
    local_steps: int
    step_s: float
    alone_s: float
    sent: float
    time: ClusterTime


def chosen_methods(texts: Iterable[str]) -> list[ChosenMethod]:
    """Methods from texts such as `ddp,p3` or `local_sgd local_steps=40`.

    Raises:
        UserError: for a text without a method, or options not of the form name=value.
    """
    chosen = []
    for text in (part.strip() for given in texts for part in given.split(",")):
        if not text:
            raise UserError("--method is empty; ddp,p3 are two methods, 'local_sgd local_steps=40' has an option")
        name, *pairs = text.split()
        chosen.append(ChosenMethod(name=name, options=parse_pairs(pairs, "--method")))
    return chosen


def size_trace(record: ScriptRecord, method: ChosenMethod, nodes: int, most: int = MOST_EVENTS) -> Trace | None:
    """The trace of `record` by `method` on `nodes` nodes, as `script_trace` has it.

    None if the method has no plan from sizes, or the plan lacks a value of an option.

    most: events at most, about.

    Raises:
        UserError: for too many messages, or layers whose groups need more than their sizes.
    """
    plan = SIZE_PLANS.get(method.name)
    if plan is None or not method.options.keys() <= plan.options.keys():
        return None
    given = {name: _decoded(str(value), plan.options[name]) for name, value in method.options.items()}
    defaults = {name: own[0] if isinstance(own, tuple) else own for name, own in plan.options.items()}
    trained = sorted((own for own in record.parameters if own.trained), key=lambda own: own.place)
    itemsize = max(own.bytes // max(1, own.values) for own in trained)
    sizes = Sizes(values=[own.values for own in trained], itemsize=itemsize, nodes=nodes, most=most)
    planned = None if None in given.values() else plan.rounds(sizes, {**defaults, **given})
    return None if planned is None else trace_of_record(record, method.name, planned, nodes)


def _decoded(text: str, default: Any) -> Any:
    """`text` as a word, a truth or a number above 0, as `default` is one; None if it is none."""
    if isinstance(default, tuple):
        return text if text in default else None
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower())
    return int(text) if text.isdecimal() and 0 < int(text) < _MOST_WHOLE else None


def script_time(record: ScriptRecord, method: ChosenMethod, trace: Trace, profile: ClusterProfile) -> ScriptTime:
    """The seconds of a step in `trace`, of `script_trace`, on `profile`.

    Raises:
        UserError: as `cluster_time` does.
    """
    time, step_s = steady_step(trace, profile)
    time = dataclasses.replace(time, check=replay_check(method.name, {}))
    speeds = profile.speeds_of(trace.world_size)
    return ScriptTime(
        method=method.label,
        nodes=trace.world_size,
        local_steps=trace.round_steps,
        step_s=step_s,
        alone_s=alone_seconds(record, profile) * speeds[0] / max(speeds),
        sent=sent_in_step(trace, profile),
        time=time,
    )


def alone_seconds(record: ScriptRecord, profile: ClusterProfile) -> float:
    """The seconds of a step of one node alone on `profile`.

    Raises:
        UserError: as `cluster_time` does.
    """
    return cluster_time(alone_trace(record), profile, [1]).seconds[0]


def sent_in_step(trace: Trace, profile: ClusterProfile) -> float:
    """Bytes that the busiest node sends in a local step on `profile`."""
    there = seen_on(trace, profile)
    return most_sent(there.nodes, trace.world_size, profile.collectives) / trace.steps


def step_seconds(trace: Trace, profile: ClusterProfile) -> float:
    """The seconds of a step of `trace`, whose rounds are all alike, in the steady state.

    It replays a few rounds, and more only if the last one does not repeat the one before.

    Raises:
        UserError: as `cluster_time` does.
    """
    if trace.rounds >= _SOON:
        from istbench.cluster.simulator import replay

        found = replay(trace, profile, rounds=_SOON)
        ends = found.finish_s[:, round_ends(found.mark_kind)]
        *_, before, last = np.diff(ends, axis=1).T
        if max(np.ptp(last), np.abs(last - before).max()) <= _EQUAL * last.mean():
            return float(last.mean()) / trace.round_steps
    return steady_step(trace, profile)[1]


def steady_step(trace: Trace, profile: ClusterProfile) -> tuple[ClusterTime, float]:
    """The time of `trace` on `profile`, and the seconds of a step in the steady state.

    Raises:
        UserError: as `cluster_time` does.
    """
    steps = -(-_STEPS // trace.steps) * trace.steps
    time = cluster_time(trace, profile, [steps, 2 * steps])
    half, whole = time.seconds
    return time, (whole - half) / steps
