"""From a request to a cell: resolve names, check refusals, prepare data, fill in options."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import nn

from istbench.cells.header import header_of
from istbench.cells.refusals import Candidate, refuse
from istbench.config.data_source import DataSource
from istbench.config.interval import Interval
from istbench.config.options import written_options
from istbench.config.run import Device, RunConfig, RunRequest
from istbench.errors import RunFailed, UserError
from istbench.machine import cores
from istbench.methods.base import Method
from istbench.registry import build_method, build_workload, code_of_cell
from istbench.results.header import Header
from istbench.workloads.base import Progress, Workload
from istbench.workloads.cache import cache_directory
from istbench.workloads.contract import (
    blank_model,
    check_attributes,
    check_target,
    checked_source,
    checked_targets,
)
from istbench.workloads.held_out import hold_out, whole
from istbench.workloads.task import Task


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell that is ready to run: its name, its configuration, and the first header of its run directory."""

    name: str
    config: RunConfig
    header: Header


def prepare_cell(request: RunRequest, progress: Progress, *, here: int | None = None) -> Cell:
    """Resolve `request`, check that it can run, and prepare its data.

    Args:
        progress: called during the preparation of the data, which may take long.
        here: nodes on this machine, by default all.

    Raises:
        UserError: for any name, value, combination or data that cannot work.
        RunFailed: if the method or the workload would end this program.
    """
    try:
        candidate = _built(request, request.nodes if here is None else here)
        refuse(candidate)
        workload = candidate.workload
        source = checked_source(workload, workload.prepare(request.data, cache_directory(), progress))
        return _resolved(_sized(candidate), source)
    except SystemExit as end:
        raise RunFailed(f"{request.workload} by {request.method} called exit({end.code}) before training") from None


def _built(request: RunRequest, here: int) -> Candidate:
    """The request with its workload, method and model, each built once."""
    workload = build_workload(request.workload, request.workload_options, request.plugins)
    method = build_method(request.method, request.method_options, workload=workload, plugins=request.plugins)
    check_attributes(workload)
    workload = hold_out(workload, request.held_out, request.seed)
    if request.data is not None and workload.sized_by_data:
        workload.expect(request.data, request.workload_options)
    return Candidate(
        request=request,
        workload=workload,
        method=method,
        model=blank_model(workload, data_known=False),
        device="cpu" if method.own_kernels and request.device == "auto" else _device(request.device),
        threads=request.threads or max(1, cores() // here),
        batch_size=request.batch_size or workload.batch_size,
        here=here,
    )


def _sized(candidate: Candidate) -> Candidate:
    """The candidate after its data is ready: the model may have as many outputs as the data has classes."""
    model = blank_model(candidate.workload, data_known=True)
    sized = dataclasses.replace(candidate, model=model)
    if _shapes(model) != _shapes(candidate.model):
        refuse(sized)
    return sized


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _resolved(candidate: Candidate, source: DataSource) -> Cell:
    request, workload, method = candidate.request, candidate.workload, candidate.method
    targets = checked_targets(workload)
    if request.target is not None and not source.learnable:
        raise UserError(
            f"{request.workload} without --data trains on noise, which no model can learn: "
            "leave out --target, or give real data with --data DIR"
        )
    if request.target is not None:
        check_target(workload, request.target)
    steps, eval_every = _budget(request, workload, method, source, candidate.batch_size)
    config = RunConfig.of(
        request,
        workload_options=written_options(workload.options),
        method_options=written_options(method.options),
        batch_size=candidate.batch_size,
        steps=steps,
        eval_every=eval_every,
        device=candidate.device,
        threads=candidate.threads,
        save=None if request.save is None else str(request.save.resolve()),
        plugins=tuple(str(Path(path).resolve()) for path in request.plugins),
        sinks=request.sinks or msgspec.UNSET,
        held_out=request.held_out or msgspec.UNSET,
        tuned=request.tuned or msgspec.UNSET,
        code=code_of_cell(request.workload, request.method, request.plugins),
    )
    header = header_of(candidate, config, _with_notes(candidate, source), targets)
    return Cell(name=header.cell, config=config, header=header)


def _with_notes(candidate: Candidate, source: DataSource) -> DataSource:
    """`source`, whose note also has the remark of the method, and for a task file the size of a minibatch."""
    workload, method, nodes = candidate.workload, candidate.method, candidate.request.nodes
    notes = [source.note]
    if isinstance(whole(workload), Task):
        size = candidate.batch_size
        shards = 1 if method.batches == "replicated" else nodes
        notes.append(f"{size} samples in a minibatch of a node, {size * shards:,} in a step of {nodes} nodes")
    notes.append(method.remark(candidate.model, workload, nodes))
    return msgspec.structs.replace(source, note="; ".join(filter(None, notes)))


def _device(asked: Device) -> Device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: torch sees no GPU here; use --device cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked


def _budget(
    request: RunRequest, workload: Workload, method: Method, source: DataSource, batch_size: int
) -> tuple[int, Interval]:
    """Local steps of a node, and local steps between evaluations; by default one pass over the data."""
    shards = 1 if method.batches == "replicated" else request.nodes
    steps_per_epoch = source.train // (batch_size * shards)
    if steps_per_epoch == 0:
        most = source.train // shards
        raise UserError(
            f"batch size {batch_size} is larger than a node's data: {source.train} training samples over "
            f"{shards} node{'s' if shards > 1 else ''}; use "
            + (f"a batch size of at most {most}" if most else f"at most {source.train} nodes")
        )
    if request.steps is not None:
        steps = request.steps
    else:
        steps = max(1, round((request.epochs or workload.epochs) * steps_per_epoch))
    every = request.eval_every or Interval(steps=steps_per_epoch)
    return steps, every if every.steps is None else Interval(steps=min(every.steps, steps))
