"""A cell on the meta device. If its rounds follow from its footprint, a trace whose steps take recorded seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from istbench.base.error_lines import during
from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.base.options.shares import Shares
from istbench.cluster.trace import POST, WORK, Trace, TraceMeta
from istbench.methods.base import Method, OwnKernels, Planned
from istbench.methods.footprint import Footprint, StepCost
from istbench.methods.planned_node import PlannedRounds
from istbench.node.registry import build_method, build_workload
from istbench.node.shares import check_shares, take_shares
from istbench.plan.step import step_cost
from istbench.plan.traced_node import TracedNode, trace_of_rounds
from istbench.workloads.base import Workload
from istbench.workloads.contract import blank_model


class CannotPlan(UserError):  # noqa: N818  (a name like KeyboardInterrupt)
    """A cell may train, but its rounds do not follow from its names and options."""


@dataclass(frozen=True, kw_only=True)
class SizedCell:
    """A cell on the meta device.

    Attributes:
        batch_size: samples of the largest minibatch of a node. footprint: None if the method has none.
        rounds: those of the footprint; None if it lists none. expected: the data that the workload expects, in
            words.
    """

    workload: Workload
    method: Method
    nodes: int
    model: nn.Module
    batch_size: int
    footprint: Footprint | None
    rounds: PlannedRounds | None
    expected: str

    @property
    def parameters(self) -> int:
        """Of the full model."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @classmethod
    def of(cls, request: RunRequest, *, recorded: bool = False) -> "SizedCell":
        """The cell of `request`; its data set the sizes of the model, as in `Workload.expect`.

        recorded: whether the options of the method are those of a finished run, without the defaults of the
        workload.

        Raises:
            UserError: for an unknown name, a wrong option, or a method that cannot train the workload there.
        """
        workload = build_workload(request.workload, request.workload_options, request.plugins)
        expected = workload.expect(request.data, request.workload_options)
        suited = None if recorded else workload
        method = build_method(request.method, request.method_options, workload=suited, plugins=request.plugins)
        batch_size = request.batch_size or workload.batch_size
        return sized_cell(workload, method, request.nodes, batch_size, shares=request.shares, expected=expected)


def sized_cell(
    workload: Workload,
    method: Method,
    nodes: int,
    batch_size: int,
    *,
    shares: Shares | None = None,
    expected: str = "",
) -> SizedCell:
    """The cell of `method` on `nodes` nodes, with minibatches of `batch_size` samples a node.

    Raises:
        UserError: if the method cannot train the workload there.
    """
    with during(f"planning {method.name}", workload.place("model"), of_libraries=True):
        model = blank_model(workload, data_known=False)
        method.check(method.options, model, workload, nodes)
        check_shares(shares, method, workload, model, batch_size, nodes)
        take_shares(shares, method, batch_size, nodes)
        largest = max(method.samples, default=batch_size)
        footprint = method.footprint(model, workload, nodes, largest) if isinstance(method, Planned) else None
    rounds = None
    if footprint is not None and footprint.rounds is not None:
        rounds = PlannedRounds(
            rounds=footprint.rounds,
            steps=method.round_steps,
            window=footprint.window,
            last_bytes=footprint.last_bytes,
        )
    return SizedCell(
        workload=workload, method=method, nodes=nodes, model=model, batch_size=largest, footprint=footprint,
        rounds=rounds, expected=expected,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlannedCell(SizedCell):
    """A cell whose rounds follow from its footprint. cost, operations: of a local step of one node."""

    footprint: Footprint
    rounds: PlannedRounds
    cost: StepCost
    operations: float

    @classmethod
    def of(cls, request: RunRequest, *, recorded: bool = False) -> "PlannedCell":
        """The cell of `request`; the rest as in `SizedCell.of`.

        Raises:
            CannotPlan: if the method does not say how its work and messages follow from the nodes.
            UserError: if the cell cannot work.
        """
        cell = SizedCell.of(request, recorded=recorded)
        method, footprint = cell.method, cell.footprint
        if footprint is None or cell.rounds is None or isinstance(method, OwnKernels):
            raise CannotPlan(f"method {method.name} does not say how its work and messages change with the nodes")
        cost = step_cost(footprint.model, cell.workload, footprint.samples, copied=footprint.gradients_copied)
        if not cost.flops:
            raise CannotPlan(f"the operations of a step of {request.workload} cannot be counted without running it")
        return cls(**vars(cell), cost=cost, operations=cost.flops * cell.batch_size / footprint.samples)

    def events(self, rank: int, seconds: Sequence[float] | NDArray[Any], work_s: float) -> NDArray[Any]:
        """The events of node `rank`, after an earlier round, in rounds that cover a step for each of `seconds`.

        work_s: seconds of work beside the training thread in a step.
        """
        node = TracedNode(rank, self.nodes, self.cost, seconds)
        events = node.traced(self.rounds.rounds(node), max(1, len(seconds) // self.rounds.steps))
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
        return trace_of_rounds(
            self.method.name,
            self.rounds,
            lambda rank: TracedNode(rank, self.nodes, self.cost, [step_s]),
            self.nodes,
            recorded,
            least_steps,
        )
