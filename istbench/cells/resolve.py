"""From what a user asked to what a cell is: names resolved, data made ready, what cannot work refused."""

import dataclasses
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import istbench
from istbench.cells.computing import check_computing
from istbench.cells.refusals import check_batch, check_memory, check_schedule, check_threads
from istbench.config.data_source import DataSource
from istbench.config.interval import Interval
from istbench.config.lab import Lab
from istbench.config.options import build_options, option_text, written_options
from istbench.config.run import Device, RunConfig, RunRequest
from istbench.errors import RunFailed, UserError
from istbench.machine import cores
from istbench.methods.base import Method
from istbench.node.weights_file import check_directory
from istbench.registry import build_method, build_workload, code_of
from istbench.results.header import SCHEMA, TIMING_RULE, Git, Header, Host
from istbench.workloads.base import Progress, Workload
from istbench.workloads.cache import cache_directory
from istbench.workloads.contract import blank_model, check_attributes, checked_source, checked_targets


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell ready to run: its name, its configuration, and the header its run directory starts with."""

    name: str
    config: RunConfig
    header: Header


def prepare_cell(request: RunRequest, progress: Progress, *, here: int | None = None) -> Cell:
    """Resolve `request`, prepare its data (which may take a while, told to `progress`), check that it can run.

    here: nodes on this machine, by default all.

    Raises:
        UserError: for any name, value, combination or data that cannot work.
        RunFailed: where the method or the workload would end this program.
    """
    try:
        return _prepared(request, progress, request.nodes if here is None else here)
    except SystemExit as end:
        raise RunFailed(f"{request.workload} by {request.method} called exit({end.code}) before training") from None


def _prepared(request: RunRequest, progress: Progress, here: int) -> Cell:
    plugins = request.plugins
    workload = build_workload(request.workload, request.workload_options, plugins)
    workload_given = _changed(workload.Options(), workload.options)
    method = build_method(request.method, request.method_options, workload=workload, plugins=plugins)
    suited = build_options(type(method.options), {}, "", workload.method_defaults(request.method))
    given = _changed(suited, method.options)
    check_attributes(workload)
    if request.data is not None and workload.sized_by_data:
        workload.expect(request.data, request.workload_options)
    model = blank_model(workload, data_known=False)
    device = "cpu" if method.own_kernels and request.device == "auto" else _device(request.device)
    threads = request.threads or max(1, cores() // here)
    check_threads(threads)
    check_schedule(method)
    if request.save is not None:
        check_directory(request.save)
    check_computing(request, method, model, device)
    method.check(method.options, model, workload, request.nodes)
    batch_size = request.batch_size or workload.batch_size
    if device == "cpu" and not request.anyway:
        check_memory(method, model, workload, request.nodes, here, batch_size=batch_size, activations=False)
    source = checked_source(workload, workload.prepare(request.data, cache_directory(), progress))
    targets = checked_targets(workload)
    if request.target is not None and not source.learnable:
        raise UserError(
            f"{request.workload} without --data is noise, on which no {workload.metric} is reached: "
            "leave out --target, or give real data with --data DIR"
        )
    model = blank_model(workload, data_known=True)  # now of as many outputs as the data has classes
    if device == "cpu" and not request.anyway:
        plain = not (request.amp or request.compile)
        check_memory(method, model, workload, request.nodes, here, batch_size=batch_size, activations=plain)
    steps, eval_every = _budget(request, workload, method, source, batch_size)
    check_batch(method, model, batch_size)
    config = RunConfig(
        workload=request.workload,
        method=request.method,
        nodes=request.nodes,
        seed=request.seed,
        workload_options=written_options(workload.options),
        method_options=written_options(method.options),
        batch_size=batch_size,
        steps=steps,
        eval_every=eval_every,
        max_seconds=request.max_seconds,
        target=request.target,
        device=device,
        amp=request.amp,
        channels_last=request.channels_last,
        compile=request.compile,
        threads=threads,
        timeout_s=request.timeout_s,
        checkpoint_every_s=request.checkpoint_every_s,
        save=None if request.save is None else str(request.save.resolve()),
        plugins=tuple(str(Path(path).resolve()) for path in request.plugins),
        lab=request.lab,
        code=_code(request),
    )
    name = config.cell(source.fingerprint)
    header = Header(
        schema=SCHEMA,
        timing_rule=TIMING_RULE,
        cell=name,
        status="running",
        workload=request.workload,
        workload_label=_label(request.workload, workload_given),
        method=request.method,
        method_label=_label(request.method, {**given, **_computing(request)}),
        nodes=request.nodes,
        seed=request.seed,
        batch_size=batch_size,
        metric=workload.metric,
        targets=targets,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        data=source.kind,
        data_source=source,
        config=config,
        budget=_budget_text(request, workload, steps),
        versions={
            "istbench": istbench.__version__,
            "torch": str(torch.__version__),
            "python": sys.version.split()[0],
        },
        host=_host(request.lab),
        git=_git_state(),
    )
    return Cell(name=name, config=config, header=header)


def _code(request: RunRequest) -> str:
    workload = code_of("workloads", request.workload, request.plugins)
    return ", ".join(filter(None, dict.fromkeys([code_of("methods", request.method, request.plugins), workload])))


def _changed(defaults: Any, options: Any) -> dict[str, Any]:
    before = dataclasses.asdict(defaults)
    return {name: value for name, value in dataclasses.asdict(options).items() if value != before[name]}


def _label(name: str, changed: Mapping[str, Any]) -> str:
    return " ".join([name, *(f"{option}={option_text(value)}" for option, value in changed.items())])


def _computing(request: RunRequest) -> dict[str, Any]:
    """What a row of a table says of how its model was computed."""
    asked = {"amp": request.amp, "channels_last": request.channels_last, "compile": request.compile}
    return {name: value for name, value in asked.items() if value}


def _device(asked: Device) -> Device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: torch sees no GPU here; use --device cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked


def _budget(
    request: RunRequest, workload: Workload, method: Method, source: DataSource, batch_size: int
) -> tuple[int, Interval]:
    """Local steps a node, and local steps between evaluations: by default one pass over the data."""
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


def _budget_text(request: RunRequest, workload: Workload, steps: int) -> str:
    parts = [f"{steps} steps" if request.steps is not None else f"{request.epochs or workload.epochs:g} epochs"]
    if request.max_seconds is not None:
        parts.append(f"at most {request.max_seconds:g} s of training")
    if request.target is not None:
        parts.append(f"stop at {workload.metric} {request.target:g}")
    return ", ".join(parts)


def _host(lab: Lab | None) -> Host:
    machine = platform.machine()
    return Host(name=socket.gethostname(), cores=cores(), machine=machine, lab=None if lab is None else lab.summary)


def _git_state() -> Git | None:
    """Commit of the source tree istbench runs from and whether it has changes; None outside a checkout."""
    where = Path(__file__).parent
    try:
        asked = ["git", "-C", str(where), "log", "-1", "--format=%H"]
        commit = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
        asked = ["git", "-C", str(where), "status", "--porcelain", "--untracked-files=no"]
        changes = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return Git(commit=commit, dirty=bool(changes)) if commit else None
