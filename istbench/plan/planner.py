"""Make the plan of a cell: its model on the meta device, its rounds from its footprint, and their simulation."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import msgspec
import torch

from istbench.base.errors import UserError
from istbench.base.options.numbers import MOST_NODES
from istbench.base.options.options import label_of
from istbench.base.options.run import RunRequest
from istbench.base.options.shares import Shares
from istbench.cluster.estimate import (
    PLANNED_ROUNDS,
    CellPlan,
    NodeMemory,
    bytes_sent,
    fewest,
    fits,
    largest,
    most_sent,
    round_seconds,
)
from istbench.cluster.in_turns import seen_on, turns_on
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.repeated_nodes import one_stands_for_all
from istbench.cluster.scale import on_gpus, speed_of
from istbench.cluster.speed import GIGA, StepWork
from istbench.cluster.trace import segment
from istbench.cluster.trace_builder import merge
from istbench.methods.base import OwnKernels, Remarks
from istbench.methods.footprint import Footprint, PlannedNode, StepCost
from istbench.methods.planned_node import MOST_EVENTS
from istbench.node.registry import build_workload
from istbench.plan.planned_cell import SizedCell
from istbench.plan.step import node_memory, step_cost, unknown_cost

_MOST_UNITS = 2**24
_WIDEST_GAP = 256  # between two widths that a workload takes
_LONGEST_S = 1e8


def make_plan(
    request: RunRequest,
    cluster: ClusterProfile,
    simulating: Callable[[], AbstractContextManager[object]] = nullcontext,
    *,
    limits: bool = True,
) -> CellPlan:
    """Plan a cell without allocating its model or preparing data. Rounds are simulated inside `simulating()`.

    limits: whether to search for the largest width and the fewest nodes that fit. It takes most of the time.

    Raises:
        UserError: for an unknown name, a wrong option, or a method that cannot train the workload on these nodes.
    """
    return _Planner(request, cluster, simulating).plan(limits=limits)


def planned_memory(request: RunRequest, cluster: ClusterProfile) -> NodeMemory | None:
    """The memory of the busiest node, without a look at rounds; None if the method has no footprint.

    Raises:
        UserError: as `make_plan` does.
    """
    return _Planner(request, cluster, nullcontext).memory()


class _Planner:
    def __init__(
        self,
        request: RunRequest,
        cluster: ClusterProfile,
        simulating: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._request, self._cluster, self._simulating = request, cluster, simulating
        self._on_gpu = on_gpus(cluster)
        self._costs: dict[Any, StepCost] = {}

    def memory(self) -> NodeMemory | None:
        cell = self._cell(self._request.nodes, None)
        return None if cell.footprint is None else self._memory(cell, cell.footprint, whole=True)

    def plan(self, *, limits: bool) -> CellPlan:
        request = self._request
        cell = self._cell(request.nodes, None)
        footprint = cell.footprint
        sent = seconds = computing = memory = None
        busiest = 1.0
        if footprint is not None:
            memory = self._memory(cell, footprint, whole=True)
            cost = self._cost(cell, footprint)
            computing = self._step_seconds(cell, footprint, cost)
            work = self._work(cell, footprint, cost)
            sent, seconds = self._round(cell, footprint, cost, computing, work)
            busiest = max(map(operator.truediv, work, self._cluster.speeds_of(request.nodes)))
        width = cell.workload.width
        searched = footprint is not None and limits
        return CellPlan(
            workload=label_of(request.workload, request.workload_options),
            method=label_of(request.method, request.method_options),
            nodes=request.nodes,
            batch_size=request.batch_size or cell.workload.batch_size,
            cluster=self._cluster,
            model_parameters=cell.parameters,
            memory=memory,
            sent=sent,
            seconds=seconds,
            compute_seconds=None if computing is None else computing * cell.method.round_steps * busiest,
            round_steps=cell.method.round_steps,
            width=width,
            largest_width=self._largest_width(cell, width) if searched and width else None,
            fewest_nodes=fewest(lambda nodes: self._spare(nodes, None) >= 0, MOST_NODES) if searched else None,
            assumed=self._assumed(cell, memory, simulated=seconds is not None or computing is None or sent is None),
        )

    def _shares(self, nodes: int) -> Shares | None:
        """The shares of `nodes` nodes, for `--shares speed` the speeds of the cluster; None if they are equal."""
        shares = self._request.shares
        if shares is None or nodes != self._request.nodes:
            return None
        return shares if shares.speeds else Shares(self._cluster.speeds_of(nodes))

    def _work(self, cell: SizedCell, footprint: Footprint, cost: StepCost) -> list[float]:
        """The seconds of a local step of each node, by rank, over those of the node with the most work."""
        if footprint.parts and cost.flops:
            parts = {part: self._cost(cell, replace(footprint, model=part)).flops for part in footprint.parts}
            return [(parts[part] or cost.flops) / cost.flops for part in footprint.parts]
        samples = cell.method.samples or [1] * cell.nodes
        return [own / max(samples) for own in samples]

    def _step_seconds(self, cell: SizedCell, footprint: Footprint, cost: StepCost) -> float | None:
        """Seconds in which a node computes a local step; None if unknown."""
        cluster = self._cluster
        if cost.flops is None or (isinstance(cell.method, OwnKernels) and not footprint.gathered):
            return None
        passes = cell.batch_size / footprint.samples
        products = StepWork(operations=cost.flops * passes, bytes=0.0)
        speed = speed_of(cluster)
        if speed is None:
            return None if footprint.gathered else products.operations / (cluster.gflops * GIGA)
        if footprint.gathered and self._on_gpu:
            return None
        # With own kernels, torch's operations are those of the hidden layer.
        return speed.seconds(
            StepWork(operations=products.operations, bytes=cost.bytes * passes, gathered=footprint.gathered)
        )

    def _cell(self, nodes: int, width: int | None) -> SizedCell:
        options, shares = self._of_width(width), self._shares(nodes)
        return SizedCell.of(
            msgspec.structs.replace(self._request, nodes=nodes, workload_options=options, shares=shares)
        )

    def _cost(self, cell: SizedCell, footprint: Footprint) -> StepCost:
        shapes = tuple((parameter.shape, parameter.requires_grad) for parameter in footprint.model.parameters())
        updates_wide = self._updates_wide(footprint)
        key = shapes, footprint.samples, footprint.gradients_copied, updates_wide
        if key not in self._costs:
            copied = footprint.gradients_copied
            self._costs[key] = step_cost(
                footprint.model, cell.workload, footprint.samples, copied=copied, updates_wide=updates_wide
            )
        return self._costs[key]

    def _updates_wide(self, footprint: Footprint) -> bool:
        return footprint.updates_wide_layers and not self._on_gpu

    def _memory(self, cell: SizedCell, footprint: Footprint, *, whole: bool) -> NodeMemory:
        if whole:
            cost = self._cost(cell, footprint)
        else:
            cost = unknown_cost(footprint.model, updates_wide=self._updates_wide(footprint))
        memory = node_memory(
            footprint,
            cost,
            data=cell.workload.computed_bytes(),
            batches_ahead=cell.workload.batches_ahead,
            on_gpu=self._on_gpu,
            backend=self._cluster.collectives,
            distant=cell.nodes if whole and turns_on(self._cluster, cell.nodes) else 0,
            stepping=whole,
        )
        if footprint.before is None:
            return memory
        return max(memory, self._memory(cell, footprint.before, whole=whole), key=lambda part: part.total)

    def _spare(self, nodes: int, width: int | None) -> float:
        """Bytes that the cell with `nodes` and `width` leaves free; below 0 if it does not fit, or cannot train."""
        try:
            cell, _ = self._nearest_cell(nodes, width)
        except UserError:
            return -math.inf
        if cell.footprint is None:
            return -math.inf
        # If the other parts alone are too large, counting activations and optimizer scratch is a waste of time.
        limit = self._cluster.memory_bytes
        memory = self._memory(cell, cell.footprint, whole=False)
        if fits(memory, limit) is not False:
            memory = self._memory(cell, cell.footprint, whole=True)
        return -math.inf if fits(memory, limit) is None else limit - memory.total

    def _largest_width(self, cell: SizedCell, option: str) -> int | None:
        start = getattr(cell.workload.options, option)
        found = largest(lambda width: self._spare(self._request.nodes, width), start, _MOST_UNITS)
        return None if found is None else self._nearest_cell(self._request.nodes, found)[1]

    def _nearest_cell(self, nodes: int, width: int | None) -> tuple[SizedCell, int | None]:
        """The cell of `width`, or of the next smaller one that the workload takes: heads may have to divide it."""
        if width is not None:
            near = range(width, max(0, width - _WIDEST_GAP), -1)
            width = next(filter(self._takes, near), width)
        return self._cell(nodes, width), width

    def _takes(self, width: int) -> bool:
        """Whether the workload takes its option `width`."""
        request = self._request
        try:
            build_workload(request.workload, self._of_width(width), request.plugins)
        except UserError:
            return False
        return True

    def _of_width(self, width: int | None) -> dict[str, Any]:
        """The options of the workload with this `width`, or with its own."""
        own = {} if width is None else {self._width_option: width}
        return {**self._request.workload_options, **own}

    @functools.cached_property
    def _width_option(self) -> str:
        request = self._request
        return build_workload(request.workload, request.workload_options, request.plugins).width

    def _round(
        self,
        cell: SizedCell,
        footprint: Footprint,
        cost: StepCost,
        step_seconds: float | None,
        work: Sequence[float],
    ) -> tuple[int | None, float | None]:
        """Bytes that the busiest node sends in a round, and the seconds of a round; None if unknown.

        work: of each node in a step, over that of the node with the most.
        """
        nodes, rounds = self._request.nodes, footprint.rounds
        if rounds is None:
            return None, None
        steps = cell.method.round_steps
        seconds = step_seconds or 0.0
        backend = self._cluster.collectives

        def traced(rank: int, count: int) -> Any:
            node = PlannedNode(rank, nodes, cost, seconds * work[rank])
            own = rounds(node)
            for _ in range(count):
                next(own)
                node.builder.mark("round")
            return node.builder.to_arrays()

        first = traced(0, 1)
        uniform = self._cluster.uniform and len(set(work)) == 1
        alike = uniform and one_stands_for_all(lambda rank: traced(rank, 1), nodes)
        ranks = range(1 if alike else nodes)
        if len(first) * len(ranks) > MOST_EVENTS:
            return bytes_sent(first, nodes, 0, backend), None
        too_long = step_seconds is None or seconds * steps > _LONGEST_S
        simulated = not too_long and len(first) * len(ranks) * PLANNED_ROUNDS <= MOST_EVENTS
        events = [traced(rank, PLANNED_ROUNDS if simulated else 1) for rank in ranks]
        try:
            merged = merge(events, world_size=nodes, window=footprint.window)
        except ValueError as error:
            where = f"footprint of method {self._request.method}"
            raise UserError(f"{where}: its rounds are no trace: {error}") from None
        there = seen_on(merged, self._cluster)
        sent = most_sent(segment(there, 0, 1).nodes, nodes, backend)
        if not simulated:
            return sent, None
        with self._simulating():
            return sent, round_seconds(there, self._cluster)

    def _assumed(self, cell: SizedCell, memory: NodeMemory | None, *, simulated: bool) -> tuple[str, ...]:
        if memory is None:
            return (f"method {cell.method.name} has no footprint (docs/plugins.md)",)
        method, about = cell.method, (cell.model, cell.workload, self._request.nodes)
        lines = [
            *filter(None, [cell.expected, method.remark(*about) if isinstance(method, Remarks) else ""]),
            "float32 throughout; evaluation, assembling and the processes themselves are not counted",
        ]
        if cell.footprint is not None:
            lines += cell.footprint.notes
        if not memory.complete:
            lines.append(f"activations are unknown: {_why_unknown(cell)}")
        if not simulated:
            lines.append("seconds of a round are unknown: it has too many messages to simulate in a minute")
        lines += _shares_lines(cell, self._shares(self._request.nodes))
        if self._request.nodes > 1:
            library = {"gloo": "gloo", "nccl": "NCCL"}[self._cluster.collectives]
            far = turns_on(self._cluster, self._request.nodes)
            lines.append(
                f"collectives take the messages and the buffers of {library}"
                + (", all-reduces those of istbench's turns between distant nodes" if far else "")
            )
        lines.append(_computing_line(cell, self._cluster))
        return tuple(lines)


def _shares_lines(cell: SizedCell, shares: Shares | None) -> list[str]:
    if shares is None:
        return []
    samples = ", ".join(map(str, cell.method.samples))
    what = f"{samples} samples a step" if samples else "units by speed"
    return [f"shares {shares} of the nodes: {what}; the fewest nodes are for equal ones"]


def _computing_line(cell: SizedCell, cluster: ClusterProfile) -> str:
    own = isinstance(cell.method, OwnKernels)
    if own and on_gpus(cluster):
        return (
            f"seconds are unknown: {cell.method.name} has kernels for processors only, and a node of "
            f"{cluster.name} computes on a GPU"
        )
    if speed_of(cluster) is None:
        if own:
            return f"seconds are unknown: the profile of {cluster.name} lacks memory_gb_per_s"
        return (
            "computing takes as long as the matrix products of a local step at the cluster's speed; updates, "
            "copies and all else take no time"
        )
    kernels = ", the method's own kernels gather rows at its gather_gb_per_s" if own else ""
    return (
        "computing takes as long as the matrix products of a local step at the cluster's speed, and its other "
        f"operations at its memory's{kernels}; updates and copies take no time"
    )


def _why_unknown(cell: SizedCell) -> str:
    with torch.device("meta"):
        batch = cell.workload.meta_batch(cell.batch_size)
    if batch is None:
        return f"workload {cell.workload.name!r} has no meta_batch (docs/plugins.md)"
    return f"workload {cell.workload.name!r} cannot compute its loss on the meta device"
