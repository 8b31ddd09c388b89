"""A plan from what a user asks for: models on the meta device, rounds that nobody has run, and the simulation."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from istbench.cluster.estimate import (
    PLANNED_ROUNDS,
    Estimate,
    NodeMemory,
    bytes_sent,
    fewest,
    fits,
    largest,
    round_seconds,
)
from istbench.cluster.profile import ClusterProfile
from istbench.config.numbers import MOST_NODES
from istbench.config.options import option_text
from istbench.errors import UserError
from istbench.footprint import Footprint, PlannedNode, StepCost
from istbench.methods.base import Method
from istbench.plan.memory import node_memory
from istbench.plan.step import step_cost, unknown_cost
from istbench.registry import build_method, build_workload
from istbench.workloads.base import Workload
from istbench.workloads.contract import blank_model

_MOST_UNITS = 2**24
_MOST_EVENTS = 1_000_000
_LONGEST_S = 1e8


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be planned; options as typed, or values of their type.

    limits: whether the largest width and the fewest nodes that fit are looked for, which takes most of the time.
    """

    workload: str
    method: str
    nodes: int
    cluster: ClusterProfile
    workload_options: Mapping[str, Any] = field(default_factory=dict)
    method_options: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    data: Path | None = None
    plugins: tuple[str, ...] = ()
    limits: bool = True


@dataclass(frozen=True)
class _Cell:
    workload: Workload
    method: Method
    model: nn.Module
    batch_size: int
    footprint: Footprint | None
    expected: str


def make_plan(asked: Asked, simulating: Callable[[], AbstractContextManager[None]] = nullcontext) -> Estimate:
    """The plan of a cell. Allocates nothing and prepares no data; rounds are simulated inside `simulating()`.

    Raises:
        UserError: for an unknown name, a wrong option, or a method that cannot train the workload on these nodes.
    """
    return _Planner(asked, simulating).plan()


class _Planner:
    def __init__(self, asked: Asked, simulating: Callable[[], AbstractContextManager[None]]) -> None:
        self._asked, self._simulating = asked, simulating
        self._on_gpu = asked.cluster.cores is None
        self._limit = int(asked.cluster.memory_gib * 2**30)
        self._costs: dict[Any, StepCost] = {}

    def plan(self) -> Estimate:
        asked = self._asked
        cell = self._cell(asked.nodes, None)
        footprint = cell.footprint
        sent = seconds = computing = memory = None
        if footprint is not None:
            memory = self._memory(cell, footprint, whole=True)
            cost = self._cost(cell, footprint)
            if cost.flops is not None:
                passes = cell.batch_size / footprint.samples
                computing = cost.flops * passes / (asked.cluster.gflops * 1e9)
            sent, seconds = self._round(cell, footprint, cost, computing)
        width = cell.workload.width
        searched = footprint is not None and asked.limits
        return Estimate(
            workload=_label(asked.workload, asked.workload_options),
            method=_label(asked.method, asked.method_options),
            nodes=asked.nodes,
            batch_size=cell.batch_size,
            cluster=asked.cluster,
            model_parameters=sum(parameter.numel() for parameter in cell.model.parameters()),
            memory=memory,
            sent=sent,
            seconds=seconds,
            compute_seconds=None if computing is None else computing * cell.method.round_steps,
            round_steps=cell.method.round_steps,
            width=width,
            largest_width=self._largest_width(cell, width) if searched and width else None,
            fewest_nodes=fewest(lambda nodes: self._suits(nodes, None), MOST_NODES) if searched else None,
            assumed=self._assumed(cell, memory),
        )

    def _cell(self, nodes: int, width: int | None) -> _Cell:
        asked = self._asked
        options = dict(asked.workload_options)
        if width is not None:
            options[build_workload(asked.workload, options, asked.plugins).width] = width
        workload = build_workload(asked.workload, options, asked.plugins)
        expected = workload.expect(asked.data, asked.workload_options)
        method = build_method(asked.method, asked.method_options, workload=workload, plugins=asked.plugins)
        model = blank_model(workload, data_known=False)
        method.check(method.options, model, workload, nodes)
        batch_size = asked.batch_size or workload.batch_size
        footprint = method.footprint(model, workload, nodes, batch_size)
        return _Cell(workload, method, model, batch_size, footprint, expected)

    def _cost(self, cell: _Cell, footprint: Footprint) -> StepCost:
        shapes = tuple((parameter.shape, parameter.requires_grad) for parameter in footprint.model.parameters())
        key = shapes, footprint.samples, footprint.gradients_copied
        if key not in self._costs:
            self._costs[key] = step_cost(
                footprint.model, cell.workload, footprint.samples, copied=footprint.gradients_copied
            )
        return self._costs[key]

    def _memory(self, cell: _Cell, footprint: Footprint, *, whole: bool) -> NodeMemory:
        cost = self._cost(cell, footprint) if whole else unknown_cost(footprint.model)
        return node_memory(
            footprint,
            cost,
            data=cell.workload.computed_bytes(),
            batches_ahead=cell.workload.batches_ahead,
            on_gpu=self._on_gpu,
            stepping=whole,
        )

    def _suits(self, nodes: int, width: int | None) -> bool:
        """Whether it fits with so many nodes and such a width; not where it cannot be trained that way at all."""
        try:
            cell, _ = self._nearest_cell(nodes, width)
        except UserError:
            return False
        if cell.footprint is None:
            return False
        # What is too large without its activations and its optimizer's scratch needs none counted.
        least = self._memory(cell, cell.footprint, whole=False)
        return fits(least, self._limit) is not False and bool(
            fits(self._memory(cell, cell.footprint, whole=True), self._limit)
        )

    def _largest_width(self, cell: _Cell, option: str) -> int | None:
        start = getattr(cell.workload.options, option)
        found = largest(lambda width: self._suits(self._asked.nodes, width), start, _MOST_UNITS)
        return None if found is None else self._nearest_cell(self._asked.nodes, found)[1]

    def _nearest_cell(self, nodes: int, width: int | None) -> tuple[_Cell, int | None]:
        """The cell of that width, or of one less where the workload has no such width, an odd one say."""
        try:
            return self._cell(nodes, width), width
        except UserError:
            if width is None or width == 1:
                raise
            return self._cell(nodes, width - 1), width - 1

    def _round(
        self, cell: _Cell, footprint: Footprint, cost: StepCost, step_seconds: float | None
    ) -> tuple[int | None, float | None]:
        """Bytes that the busiest node sends a round, and seconds of one; None where not known."""
        nodes, rounds = self._asked.nodes, footprint.rounds
        if rounds is None:
            return None, None
        steps = cell.method.round_steps
        seconds = step_seconds or 0.0

        def traced(rank: int, count: int) -> Any:
            node = PlannedNode(rank, nodes, cost, seconds)
            own = rounds(node)
            for _ in range(count):
                next(own)
                node.builder.mark("round")
            return node.builder.to_arrays()

        first = traced(0, 1)
        if len(first) * nodes > _MOST_EVENTS:
            return bytes_sent(first, nodes), None
        sent = max(bytes_sent(traced(rank, 1), nodes, rank) for rank in range(nodes))
        too_long = step_seconds is None or seconds * steps > _LONGEST_S
        if too_long or len(first) * nodes * PLANNED_ROUNDS > _MOST_EVENTS:
            return sent, None
        events = [traced(rank, PLANNED_ROUNDS) for rank in range(nodes)]
        with self._simulating():
            return sent, round_seconds(events, self._asked.cluster, footprint.window)

    def _assumed(self, cell: _Cell, memory: NodeMemory | None) -> tuple[str, ...]:
        if memory is None:
            return (f"{cell.method.name} does not say what it holds and sends (Method.footprint)",)
        lines = [
            cell.expected,
            "float32 throughout; evaluating, assembling and the processes themselves not counted",
        ]
        if not memory.complete:
            lines.append(f"activations not known: {_why_unknown(cell)}")
        lines.append(
            "computing: the matrix products of a local step at the cluster's speed; updates and copies not counted"
        )
        return tuple(lines)


def _why_unknown(cell: _Cell) -> str:
    with torch.device("meta"):
        batch = cell.workload.meta_batch(cell.batch_size)
    if batch is None:
        return f"workload {cell.workload.name!r} has no meta_batch to plan a step with (docs/plugins.md)"
    return f"{cell.workload.name} computes no loss on the meta device"


def _label(name: str, options: Mapping[str, Any]) -> str:
    return " ".join([name, *(f"{option}={option_text(value)}" for option, value in options.items())])
