"""A recorded script in place of a workload, and the trace that a run of it by some method would have recorded.

The workload has the sizes of the model, without data, loss and metric. The method's own plan gives the messages. A
local step takes the recorded seconds on every node alike. Messages start when the recorded gradients were ready.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from istbench.base.errors import UserError
from istbench.base.options.numbers import MOST_NODES
from istbench.cluster.estimate import CellPlan, NodeMemory, fewest, fits
from istbench.cluster.in_turns import turns_on
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.scale import on_gpus
from istbench.cluster.script_record import RecordedTensor, ScriptRecord
from istbench.cluster.trace import Trace
from istbench.methods.base import CutsUnits, Method, OwnKernels
from istbench.methods.cut_model import CutMethod
from istbench.methods.footprint import Footprint
from istbench.methods.optimizer import RULES, ClippedOptions, OptimizerOptions
from istbench.methods.planned_node import PlannedRounds
from istbench.node.registry import build_method, load_method, names_of
from istbench.plan.planned_cell import SizedCell, sized_cell
from istbench.plan.script_time import ChosenMethod, script_time, step_cost, trace_of_record
from istbench.plan.step import node_memory
from istbench.workloads.base import Workload


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("a recorded script has no data and no loss")


class ScriptWorkload(Workload):
    """The workload of a recorded script, for plans. Its batch is the script's own."""

    name = "script"
    batch_size = 1

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """A script has its own options."""

    def __init__(self, record: ScriptRecord) -> None:
        super().__init__()
        self.record = record

    def build_model(self) -> nn.Module:
        """The modules of the recorded model with their parameters and buffers; it computes nothing."""
        containers = {module.name: module.container for module in self.record.modules}
        model = nn.ModuleList() if containers.get("") else nn.Module()
        for name in containers:
            _module(model, name, containers)
        for parameter in sorted(self.record.parameters, key=lambda parameter: parameter.place):
            value = nn.Parameter(_empty(parameter), requires_grad=parameter.trained)
            for name in parameter.names:
                owner, _, short = name.rpartition(".")
                _module(model, owner, containers)._parameters[short] = value
        for buffer in self.record.buffers:
            owner, _, short = buffer.names[0].rpartition(".")
            _module(model, owner, containers)._buffers[short] = _empty(buffer)
        return model

    def method_defaults(self, method: str) -> dict[str, Any]:
        """The script's own optimizer, or else the first one that keeps as much state."""
        record = self.record
        own = [rule for rule in RULES.values() if {rule.made_by.__name__} == set(record.optimizers)]
        tried = [
            OptimizerOptions(optimizer=rule.name, momentum=momentum)
            for rule in own or RULES.values()
            for momentum in (0.0, 0.9)
            if not momentum or "momentum" in rule.options
        ]
        closest = min(tried, key=lambda options: abs(len(options.slots) - record.state_tensors))
        return {"optimizer": closest.optimizer, "momentum": closest.momentum}

    @property
    def train_size(self) -> int:
        _refuse()

    # A script has its own data, batches, loss and evaluation.
    prepare = open = train_batch = test_batches = loss = evaluate = _refuse


def check_record(method: type[Method], record: ScriptRecord) -> None:
    """Refuse a method that cannot train `record`, or whose exchange does not follow from the sizes of its model.

    Raises:
        UserError: naming the reason and the way out.
    """
    reason = (
        "cuts the model by groups of neurons"
        if issubclass(method, CutsUnits)
        else "computes with kernels of its own"
        if issubclass(method, OwnKernels)
        else "cuts the model at its wide output"
        if issubclass(method, CutMethod)
        else ""
    )
    if reason:
        raise UserError(f"{method.name} {reason}, which sizes and times do not tell; train it as a workload")
    if record.clips and not issubclass(method.Options, ClippedOptions):
        raise UserError(
            f"{method.name} updates a parameter before the last gradient is known, and {record.script} clips by "
            "the norm of all gradients; choose another method"
        )


def _module(model: nn.Module, name: str, containers: dict[str, bool]) -> nn.Module:
    """The module `name` in `model`, made with its parents if it is missing."""
    found, path = model, ""
    for part in name.split(".") if name else ():
        path = f"{path}.{part}" if path else part
        if part not in found._modules:
            found._modules[part] = nn.ModuleList() if containers.get(path) else nn.Module()
        child = found._modules[part]
        assert child is not None
        found = child
    return found


def _empty(tensor: RecordedTensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")


def methods_for(record: ScriptRecord) -> list[ChosenMethod]:
    """The installed methods that can train such a script, and whose exchange follows from the sizes of a model."""
    found = []
    for name in names_of("methods"):
        with suppress(UserError):
            check_record(load_method(name), record)
            found.append(ChosenMethod(name=name, options={}))
    return found


def script_trace(record: ScriptRecord, method: ChosenMethod, nodes: int) -> Trace:
    """The trace of `record` by `method` on `nodes` nodes.

    Raises:
        UserError: if the method cannot train such a model, does not plan its memory and messages, or has too many
            messages.
    """
    cell, _, rounds = _planned(record, method, nodes)
    return trace_of_record(record, cell.method.name, rounds, nodes)


def _planned(record: ScriptRecord, chosen: ChosenMethod, nodes: int) -> tuple[SizedCell, Footprint, PlannedRounds]:
    """The cell of `chosen` for the model of `record`, its footprint and its rounds."""
    workload = ScriptWorkload(record)
    check_record(load_method(chosen.name), record)
    method = build_method(chosen.name, chosen.options, workload=workload)
    cell = sized_cell(workload, method, nodes, workload.batch_size)
    if cell.footprint is None or cell.rounds is None:
        raise UserError(
            f"{chosen.name} lists no messages for {record.model_bytes:,} bytes on {nodes} nodes: too many, "
            "or unknown from sizes; name larger parts, as by slice_params of p3, or another method"
        )
    return cell, cell.footprint, cell.rounds


TIMING_ONLY = "timing only: a script's loss and accuracy by these methods are unknown"


def plan_script(
    record: ScriptRecord, method: ChosenMethod, nodes: int, cluster: ClusterProfile, assumed: Sequence[str] = ()
) -> CellPlan:
    """The plan of `record` by `method`. assumed: phrases about the cluster.

    Raises:
        UserError: if the method cannot train such a model on these nodes, or its rounds do not replay.
    """
    cell, footprint, rounds = _planned(record, method, nodes)
    time = script_time(record, method, trace_of_record(record, cell.method.name, rounds, nodes), cluster)
    steps = rounds.steps

    def suits(count: int) -> bool:
        try:
            _, there, _ = _planned(record, method, count)
        except UserError:
            return False
        return bool(fits(_memory(record, there, count, cluster), cluster.memory_bytes))

    return CellPlan(
        workload=record.script,
        method=method.label,
        nodes=nodes,
        batch_size=None,
        cluster=cluster,
        model_parameters=cell.parameters,
        memory=_memory(record, footprint, nodes, cluster),
        sent=round(time.sent * steps),
        seconds=time.step_s * steps,
        compute_seconds=max(time.time.computing) * time.step_s * steps,
        round_steps=steps,
        fewest_nodes=fewest(suits, MOST_NODES),
        assumed=(*assumptions(record), *assumed, *footprint.notes),
    )


def assumptions(record: ScriptRecord) -> tuple[str, ...]:
    """The assumptions behind figures of a recorded script, a phrase each."""
    machine = record.machine
    device = (
        "a GPU"
        if machine.device == "cuda"
        else f"{machine.threads or 'some'} thread{'' if machine.threads == 1 else 's'} of processors"
    )
    lines = [
        TIMING_ONLY,
        f"every node computes each step in the recorded {record.step_s:.3g} s, scaled from {device} to the cluster",
    ]
    if record.backward_passes > 1:
        lines.append(f"the exchange belongs to the last of the {record.backward_passes} backward passes of a step")
    return (*lines, *record.notes)


def _memory(record: ScriptRecord, footprint: Footprint, nodes: int, cluster: ClusterProfile) -> NodeMemory:
    return node_memory(
        footprint,
        step_cost(record),
        on_gpu=on_gpus(cluster),
        backend=cluster.collectives,
        distant=nodes if turns_on(cluster, nodes) else 0,
        stepping=False,
    )
