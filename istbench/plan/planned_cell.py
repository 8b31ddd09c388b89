"""A cell whose rounds follow from its method's footprint, and whose local steps take recorded seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from istbench.base.error_lines import during
from istbench.base.errors import UserError
from istbench.cluster.trace import POST, WORK, Trace, TraceMeta
from istbench.methods.base import Method, OwnKernels, Planned
from istbench.methods.footprint import Footprint, StepCost
from istbench.node.registry import build_method, build_workload
from istbench.plan.step import step_cost
from istbench.plan.traced_node import TracedNode, trace_of_nodes
from istbench.workloads.base import Workload
from istbench.workloads.contract import blank_model


class CannotPlan(UserError):  # noqa: N818  (a name like KeyboardInterrupt)
    """A cell may train, but its rounds do not follow from its names and options."""


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """A cell on some number of nodes.

    Attributes:
        parameters: of the full model. operations: of a local step of one node.
    """

    nodes: int
    workload: Workload
    method: Method
    footprint: Footprint
    cost: StepCost
    parameters: int
    operations: float

    @classmethod
    def of(
        cls,
        workload: str,
        workload_options: Mapping[str, Any],
        method: str,
        method_options: Mapping[str, Any],
        *,
        plugins: Sequence[str],
        batch_size: int | None,
        nodes: int,
        data: Path | None = None,
        recorded: bool = False,
    ) -> "PlannedCell":
        """The cell of these names and options.

        batch_size: of a node; None for the workload's own. data: as in `Workload.expect`. recorded: whether the
        options of the method are those of a finished run, without the defaults of the workload.

        Raises:
            CannotPlan: if the method does not say how its work and messages follow from the nodes.
            UserError: if the cell cannot work.
        """
        task = build_workload(workload, workload_options, plugins)
        task.expect(data, workload_options)
        built = build_method(method, method_options, workload=None if recorded else task, plugins=plugins)
        with during(f"planning {method}", task.place("model"), of_libraries=True):
            model = blank_model(task, data_known=False)
            built.check(built.options, model, task, nodes)
            size = batch_size or task.batch_size
            footprint = None
            if isinstance(built, Planned) and not isinstance(built, OwnKernels):
                footprint = built.footprint(model, task, nodes, size)
        if footprint is None or footprint.rounds is None:
            raise CannotPlan(f"method {method} does not say how its work and messages change with the nodes")
        cost = step_cost(footprint.model, task, footprint.samples, copied=footprint.gradients_copied)
        if not cost.flops:
            raise CannotPlan(f"the operations of a step of {workload} cannot be counted without running it")
        return cls(
            nodes=nodes,
            workload=task,
            method=built,
            footprint=footprint,
            cost=cost,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            operations=cost.flops * size / footprint.samples,
        )

    def events(self, rank: int, seconds: Sequence[float] | NDArray[Any], work_s: float) -> NDArray[Any]:
        """The events of node `rank`, after an earlier round, in rounds that cover a step for each of `seconds`.

        work_s: seconds of work beside the training thread in a step.
        """
        node = TracedNode(rank, self.nodes, self.cost, seconds)
        assert self.footprint.rounds is not None
        events = node.traced(self.footprint.rounds(node), max(1, len(seconds) // self.method.round_steps))
        work = (events["code"] == POST) & (events["kind"] == WORK)
        if work.any():
            events["seconds"][work] = work_s * len(seconds) / np.count_nonzero(work)
        return events

    def trace(self, recorded: TraceMeta, step_s: float, least_steps: int) -> Trace:
        """The trace of whole rounds of at least `least_steps` local steps of `step_s` seconds each, on every node.

        recorded: the machine that recorded those seconds.

        Raises:
            UserError: for too many messages.
        """
        planned = self.footprint
        steps = -(-least_steps // self.method.round_steps) * self.method.round_steps
        return trace_of_nodes(
            self.method.name,
            recorded,
            lambda rank: self.events(rank, [step_s] * steps, 0.0),
            self.nodes,
            planned.window,
            planned.last_bytes,
        )
