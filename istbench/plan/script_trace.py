"""The trace that a run of a recorded script by some method would have recorded.

The method's own plan gives the messages. A local step takes the recorded seconds on every node alike. Messages
start when the recorded gradients were ready.
"""

import functools
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import nn

from istbench.base.errors import UserError
from istbench.cluster.repeated_nodes import one_stands_for_all
from istbench.cluster.script_record import ScriptRecord
from istbench.cluster.trace import Trace
from istbench.methods.base import Method, Planned
from istbench.methods.footprint import Footprint, StepCost
from istbench.node.registry import build_method, load_method, registered
from istbench.plan.script_time import ChosenMethod
from istbench.plan.script_workload import ScriptWorkload, check_record
from istbench.plan.traced_node import TracedNode, check_events, trace_like
from istbench.workloads.contract import blank_model

_LEAST_STEPS = 4


def methods_for(record: ScriptRecord) -> list[ChosenMethod]:
    """The installed methods that can train such a script, and whose exchange follows from the sizes of a model."""
    found = []
    for entry in registered("methods"):
        with suppress(UserError):
            check_record(load_method(entry.name), record)
            found.append(ChosenMethod(name=entry.name, options={}))
    return found


@dataclass(frozen=True, kw_only=True)
class PlannedScript:
    """A recorded script by a method on some nodes. The model is on the meta device."""

    workload: ScriptWorkload
    method: Method
    nodes: int
    model: nn.Module
    cost: StepCost
    footprint: Footprint

    @classmethod
    def of(cls, record: ScriptRecord, chosen: ChosenMethod, nodes: int) -> "PlannedScript":
        """The plan of `chosen` for the model of `record`.

        Raises:
            UserError: if the method cannot train such a model, or does not plan its memory and messages.
        """
        workload = ScriptWorkload(record)
        check_record(load_method(chosen.name), record)
        method = build_method(chosen.name, chosen.options, workload=workload)
        model = blank_model(workload, data_known=True)
        method.check(method.options, model, workload, nodes)
        footprint = None
        if isinstance(method, Planned):
            footprint = method.footprint(model, workload, nodes, workload.batch_size)
        if footprint is None or footprint.rounds is None:
            raise UserError(f"{chosen.name} does not say how its messages follow from the sizes of a model")
        cost = workload.step_cost(model)
        return cls(workload=workload, method=method, nodes=nodes, model=model, cost=cost, footprint=footprint)

    def events(self, rank: int) -> NDArray[Any]:
        """The events of node `rank` in whole rounds of at least 4 local steps."""
        node = TracedNode(rank, self.nodes, self.cost, [self.workload.computing_s], self.workload.update_cost())
        assert self.footprint.rounds is not None
        rounds = self.footprint.rounds(node)
        node.lead_in(rounds)
        for _ in range(-(-_LEAST_STEPS // self.method.round_steps)):
            next(rounds)
            node.end_round()
        return node.events()

    def trace(self) -> Trace:
        """The trace of a run. It has the first node alone if the others repeat it (`Trace`).

        Raises:
            UserError: for too many messages.
        """
        traced = functools.cache(self.events)
        first = traced(0)
        count = 1 if one_stands_for_all(traced, self.nodes) else self.nodes
        check_events(self.method.name, len(first) * count, self.nodes)
        events = [first, *(traced(rank) for rank in range(1, count))]
        planned = self.footprint
        return trace_like(self.workload.record.machine, events, self.nodes, planned.window, planned.last_bytes)


def script_trace(record: ScriptRecord, method: ChosenMethod, nodes: int) -> Trace:
    """The trace of `record` by `method` on `nodes` nodes.

    Raises:
        UserError: as `PlannedScript.of` and `PlannedScript.trace` do.
    """
    return PlannedScript.of(record, method, nodes).trace()
