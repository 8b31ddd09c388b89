"""The trace that a run of a recorded script by some method would have recorded.

The method's own plan gives the messages. A local step takes the recorded seconds on every node alike. Messages
start when the recorded gradients were ready.
"""

from contextlib import suppress
from dataclasses import dataclass

from torch import nn

from istbench.base.errors import UserError
from istbench.cluster.script_record import ScriptRecord
from istbench.cluster.trace import Trace
from istbench.methods.base import Method, Planned
from istbench.methods.footprint import Footprint, StepCost
from istbench.node.registry import build_method, load_method, registered
from istbench.plan.recorded_step import step_cost, trace_of_rounds
from istbench.plan.script_time import ChosenMethod
from istbench.plan.script_workload import ScriptWorkload, check_record
from istbench.workloads.contract import blank_model


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
        cost = step_cost(record)
        return cls(workload=workload, method=method, nodes=nodes, model=model, cost=cost, footprint=footprint)

    def trace(self) -> Trace:
        """The trace of a run.

        Raises:
            UserError: for too many messages.
        """
        planned = self.footprint
        assert planned.rounds is not None
        return trace_of_rounds(
            self.workload.record, self.method.name, planned.rounds, self.method.round_steps, self.nodes,
            window=planned.window, last_bytes=planned.last_bytes,
        )  # fmt: skip


def script_trace(record: ScriptRecord, method: ChosenMethod, nodes: int) -> Trace:
    """The trace of `record` by `method` on `nodes` nodes.

    Raises:
        UserError: as `PlannedScript.of` and `PlannedScript.trace` do.
    """
    return PlannedScript.of(record, method, nodes).trace()
