"""The first header of a run directory: the cell, its labels in tables, and the machine and versions that run it."""

import dataclasses
import functools
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import istbench
from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.base.options.data_source import DataSource
from istbench.base.options.options import build_options, label_of
from istbench.base.options.run import LABELLED, RunConfig, RunRequest
from istbench.launch.cells.refusals import UncheckedCell
from istbench.methods.base import CutsUnits
from istbench.node.registry import suited_defaults
from istbench.node.shares import divided_by_shares
from istbench.results.header import SCHEMA, TIMING_RULE, Git, Header, HostRecord
from istbench.workloads.base import Workload


def header_of(
    unchecked: UncheckedCell, config: RunConfig, source: DataSource, targets: tuple[float, ...]
) -> Header:
    """The header of the run of `config` on the data of `source`, before it starts."""
    request, workload, method = unchecked.request, unchecked.workload, unchecked.method
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
        data_source=source,
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
    )


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
    """Commit of the source tree istbench runs from and whether it has changes; None outside a checkout."""
    where = str(Path(__file__).parent)
    asked = ["git", "-C", where, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    commit, dirty, _ = found.partition("-")
    return Git(commit=commit, dirty=bool(dirty))
