"""From a request to a cell: resolve names, check refusals, prepare data, fill in options and the first header."""

import dataclasses
import functools
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

import istbench
from istbench.base.cache import cache_directory
from istbench.base.error_lines import during
from istbench.base.errors import RunFailed, UserError
from istbench.base.machine import cores
from istbench.base.options.data_source import DataSource
from istbench.base.options.interval import Interval
from istbench.base.options.options import build_options, label_of
from istbench.base.options.run import LABELLED, Device, RunConfig, RunRequest
from istbench.base.units import counted
from istbench.launch.cells.refusals import UncheckedCell, refuse
from istbench.methods.base import CutsUnits, Method, OwnKernels, Remarks
from istbench.node.registry import build_method, build_workload, code_of_cell, suited_defaults
from istbench.node.shares import divided_by_shares
from istbench.results.header import SCHEMA, TIMING_RULE, Git, Header, HostRecord
from istbench.results.store import MOST_EVALUATIONS
from istbench.workloads.base import ShowProgress, Workload
from istbench.workloads.contract import blank_model, check_attributes, check_target, checked_source, checked_targets
from istbench.workloads.held_out import hold_out, whole
from istbench.workloads.task import TaskWorkload

# Fewer cells take less than a second.
_MANY = 100


def prepare_cell(request: RunRequest, progress: ShowProgress, *, here: int | None = None) -> Header:
    """Resolve `request`, check that it can run, and prepare its data; return the first header of its run.

    Args:
        progress: called during the preparation of the data, which may take long.
        here: most nodes on this machine, by default all.

    Raises:
        UserError: for any name, value, combination or data that cannot work.
        RunFailed: if the method or the workload would end this program.
    """
    return _Resolver(progress).cell(request, here)


def prepare_cells(
    requests: Sequence[RunRequest], progress: ShowProgress, *, here: int | None = None, gpu: bool | None = None
) -> list[Header]:
    """Do what `prepare_cell` does for each of `requests`. Many of them also show their own `progress`.

    gpu: whether another machine, which trains them, has a GPU; by default this machine does.

    Raises:
        UserError, RunFailed: as `prepare_cell` does, for the first request that cannot run.
    """
    resolver, total, cells = _Resolver(progress, gpu), len(requests), list[Header]()
    for done, request in enumerate(requests, start=1):
        cells.append(resolver.cell(request, here))
        if total >= _MANY:
            progress("cells resolved", done, total)
    return cells


@dataclass(kw_only=True)
class _Built:
    """A workload and its model on the meta device; its data and the model for them, once they are ready."""

    workload: Workload
    model: nn.Module
    source: DataSource | None = None
    sized: nn.Module | None = None


class _Resolver:
    """Resolves the cells of one command. They share equal workloads, and seeds alone change few fields."""

    def __init__(self, progress: ShowProgress, gpu: bool | None = None) -> None:
        self._progress, self._gpu = progress, gpu
        self._built: dict[str, _Built] = {}
        self._cells: dict[str, Header] = {}

    def cell(self, request: RunRequest, most: int | None) -> Header:
        """The header of `request`, at most `most` of whose nodes are on this machine; None: all of them."""
        here = request.nodes if most is None else min(most, request.nodes)
        others = (name for name in request.__struct_fields__ if name != "seed" or request.held_out)
        alike = repr([here, *(getattr(request, name) for name in others)])
        if alike not in self._cells:
            self._cells[alike] = self._resolve(request, here)
        return _of_seed(self._cells[alike], request.seed)

    def _resolve(self, request: RunRequest, here: int) -> Header:
        try:
            built = self._workload(request)
            place = built.workload.place("model")
            with during(f"checking {request.method}", place, of_libraries=True):
                return self._checked(request, built, here)
        except SystemExit as end:
            raise RunFailed(
                f"{request.workload} by {request.method} called exit({end.code}) before training"
            ) from None

    def _checked(self, request: RunRequest, built: _Built, here: int) -> Header:
        workload = built.workload
        method = build_method(request.method, request.method_options, workload=workload, plugins=request.plugins)
        unchecked = UncheckedCell(
            request=request,
            workload=workload,
            method=method,
            model=built.model,
            device=_device(request.device, method, self._gpu),
            threads=request.threads or max(1, cores() // here),
            batch_size=request.batch_size or workload.batch_size,
            here=here,
            elsewhere=self._gpu is not None,
        )
        refuse(unchecked)
        if built.source is None or built.sized is None:
            found = workload.prepare(request.data, cache_directory(), self._progress)
            built.source = checked_source(workload, found)
            built.sized = blank_model(workload, data_known=True)
        # The model may have as many outputs as the data has classes.
        sized = dataclasses.replace(unchecked, model=built.sized)
        if _shapes(sized.model) != _shapes(unchecked.model):
            refuse(sized)
        return _resolved(sized, built.source)

    def _workload(self, request: RunRequest) -> _Built:
        seed = request.seed if request.held_out else None
        alike = repr(
            (request.workload, request.workload_options, request.plugins, request.held_out, seed, request.data)
        )
        if alike not in self._built:
            workload = build_workload(request.workload, request.workload_options, request.plugins)
            check_attributes(workload)
            workload = hold_out(workload, request.held_out, request.seed)
            if request.data is not None and workload.sized_by_data:
                workload.expect(request.data, request.workload_options)
            self._built[alike] = _Built(workload=workload, model=blank_model(workload, data_known=False))
        return self._built[alike]


def _of_seed(header: Header, seed: int) -> Header:
    """`header` with another seed, which no other field depends on."""
    config = msgspec.structs.replace(header.config, seed=seed)
    return msgspec.structs.replace(
        header, cell=config.cell(header.data_source.fingerprint), seed=seed, config=config
    )


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _resolved(unchecked: UncheckedCell, source: DataSource) -> Header:
    """The header of the run of `unchecked` on the data of `source`, before it starts."""
    request, workload, method = unchecked.request, unchecked.workload, unchecked.method
    targets = checked_targets(workload)
    if request.target is not None and not source.learnable:
        raise UserError(
            f"{request.workload} without --data trains on noise, which no model can learn: "
            "leave out --target, or give real data with --data DIR"
        )
    if request.target is not None:
        check_target(workload, request.target)
    steps, eval_every = _budget(request, workload, method, source, unchecked.batch_size)
    config = RunConfig.of(
        request,
        workload_options=dataclasses.asdict(workload.options),
        method_options=dataclasses.asdict(method.options),
        batch_size=unchecked.batch_size,
        steps=steps,
        eval_every=eval_every,
        device=unchecked.device,
        save=None if request.save is None else str(request.save.resolve()),
        plugins=tuple(str(Path(path).resolve()) for path in request.plugins),
        code=code_of_cell(request.workload, request.method, request.plugins, options=request.method_options),
    )
    suited = suited_defaults(type(method), workload, request.method, {})
    defaults = build_options(type(method.options), {}, "", suited)
    labelled = {name: value for name in LABELLED if (value := getattr(request, name))}
    return Header(
        schema=SCHEMA,
        timing_rule=TIMING_RULE,
        cell=config.cell(source.fingerprint),
        status="running",
        workload=request.workload,
        workload_label=label_of(request.workload, _changed(workload.Options(), workload.options)),
        method=request.method,
        method_label=label_of(request.method, {**_changed(defaults, method.options), **labelled}),
        nodes=request.nodes,
        seed=request.seed,
        threads=unchecked.threads,
        control_nodes=method.control_nodes,
        narrowed=_narrowed(unchecked),
        batch_size=config.batch_size,
        metric=workload.metric,
        lower_is_better=workload.lower_is_better,
        unit=workload.unit,
        targets=targets,
        parameters=sum(parameter.numel() for parameter in unchecked.model.parameters()),
        data=source.kind,
        typed_data="" if request.data is None else str(request.data),
        data_source=_with_notes(unchecked, source),
        config=config,
        budget=_budget_text(request, workload, config.steps),
        versions=versions(),
        host=HostRecord(
            name=socket.gethostname(),
            cores=cores(),
            machine=platform.machine(),
            lab=None if request.lab is None else request.lab.summary,
        ),
        git=_git_state(),
        takes_shares=divided_by_shares(method, workload),
        minibatches_a_step=method.round_steps if method.joint_rounds else 1,
        accumulation=max(1, method.accumulation()),
        compresses=bool(method.compresses()),
    )


def _with_notes(unchecked: UncheckedCell, source: DataSource) -> DataSource:
    """`source`, whose note also has the remark of the method, and for a task file the size of a minibatch.

    A pass over an iterable would count its samples exactly, but may take long. So the count supposes equal batches.
    """
    workload, method, nodes = unchecked.workload, unchecked.method, unchecked.request.nodes
    notes = [source.note]
    unit, task = source.unit, whole(workload)
    if isinstance(task, TaskWorkload):
        if task.in_turn and task.file.settings.samples is None:
            unit += " if every batch has as many as the first"
            notes.append("samples are counted as if every batch had as many as the first")
        together = unchecked.batch_size * method.minibatches(nodes)
        least, most = min(unchecked.samples), max(unchecked.samples)
        size = f"{most}" if least == most else f"{least} to {most}"
        step = f"{together:,} in a step of {counted(nodes, 'node')}"
        notes.append(f"{size} samples in a minibatch of a node, {step}")
    if isinstance(method, Remarks):
        notes.append(method.remark(unchecked.model, workload, nodes))
    return msgspec.structs.replace(source, unit=unit, note="; ".join(filter(None, notes)))


def _device(asked: Device, method: Method, gpu: bool | None) -> Device:
    if asked == "auto" and isinstance(method, OwnKernels):
        return "cpu"
    there = torch.cuda.is_available() if gpu is None else gpu
    if asked == "cuda" and not there:
        no_gpu = "torch sees no GPU here;" if gpu is None else "the job asks for no GPU; add --slurm gpus=1, or"
        raise UserError(f"device cuda: {no_gpu} use --device cpu")
    return ("cuda" if there else "cpu") if asked == "auto" else asked


def _budget(
    request: RunRequest, workload: Workload, method: Method, source: DataSource, batch_size: int
) -> tuple[int, Interval]:
    """Local steps of a node, and local steps between evaluations; by default one pass over the data."""
    shards = method.minibatches(request.nodes)
    steps_per_epoch = source.train // (batch_size * shards)
    if steps_per_epoch == 0:
        most = source.train // shards
        raise UserError(
            f"batch size {batch_size} is larger than a node's data: {source.train} training samples over "
            f"{counted(shards, 'node')}; use "
            + (f"a batch size of at most {most}" if most else f"at most {source.train} nodes")
        )
    if request.steps is not None:
        steps = request.steps
    else:
        steps = max(1, round((request.epochs or workload.epochs) * steps_per_epoch))
    every = request.eval_every or Interval(steps=steps_per_epoch)
    if every.steps is None:
        return steps, every
    planned = steps // max(every.steps, method.round_steps)
    if planned > MOST_EVALUATIONS and request.max_seconds is None and request.target is None:
        raise UserError(
            f"{steps:,} local steps with --eval-every {every} are {planned:,} evaluations, more than the "
            f"{MOST_EVALUATIONS:,} of a run; use --eval-every {-(-steps // MOST_EVALUATIONS)} or more"
        )
    return steps, Interval(steps=min(every.steps, steps))


def versions() -> dict[str, str]:
    """The versions of istbench, torch and Python."""
    return {
        "istbench": istbench.__version__,
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
    }


def _changed(defaults: Any, options: Any) -> dict[str, Any]:
    before = dataclasses.asdict(defaults)
    return {name: value for name, value in dataclasses.asdict(options).items() if value != before[name]}


def _narrowed(unchecked: UncheckedCell) -> dict[str, Any]:
    method = unchecked.method
    times = method.narrowing(unchecked.request.nodes) if isinstance(method, CutsUnits) else 1
    try:
        return unchecked.workload.narrowed(times) if times > 1 else {}
    except UserError:
        return {}


def _budget_text(request: RunRequest, workload: Workload, steps: int) -> str:
    parts = [f"{steps} steps" if request.steps is not None else f"{request.epochs or workload.epochs:g} epochs"]
    if request.max_seconds is not None:
        parts.append(f"at most {request.max_seconds:g} s of training")
    if request.target is not None:
        parts.append(f"stop at {workload.metric} {request.target:g}")
    return ", ".join(parts)


@functools.cache  # of the code that this process has imported, and git takes longer than the rest of a header
def _git_state() -> Git | None:
    """Commit of the source tree istbench runs from and whether it has changes; None outside a checkout.

    A virtual environment may lie inside another repository, which does not have this file.
    """
    here = Path(__file__)

    def told(*words: str) -> str:
        git = ["git", "-C", str(here.parent), *words]
        return subprocess.run(git, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        commit, _ = told("rev-parse", "HEAD", f"HEAD:./{here.name}").split()
        return Git(commit=commit, dirty=bool(told("status", "--porcelain", "--untracked-files=no")))
    except (OSError, subprocess.SubprocessError):
        return None
