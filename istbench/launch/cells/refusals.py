"""Refusals: checks that a cell can work, before any process starts and before its data is prepared."""

import dataclasses
import importlib.util
import math
import os
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import nn
from torch.nn import functional as F

from istbench.base.error_lines import during
from istbench.base.errors import UserError
from istbench.base.machine import cores, memory_bytes
from istbench.base.options.run import Device, RunRequest
from istbench.base.units import counted
from istbench.methods.base import CutsUnits, Method, OwnKernels, Planned, Reshards
from istbench.methods.footprint import batch_tensors, tensor_bytes
from istbench.methods.optimizer import OF_RULES, OptimizerOptions
from istbench.node.compute_options import HALF
from istbench.node.registry import load_sink
from istbench.node.shares import check_shares, samples_of, take_shares
from istbench.node.weights_file import check_directory
from istbench.plan.step import node_memory, step_cost, unknown_cost
from istbench.workloads.base import Workload

_GIB = 2**30
# Upper bounds: no known model has more bytes of activations than this many times its weights and its minibatch.
# A ResNet has 400 times an image.
_MOST_OF_WEIGHTS, _MOST_OF_BATCH = 4, 1000
# An upper bound: no optimizer makes this many temporary tensors of a parameter's size in a step.
_MOST_OF_STEPPED = 8
# A lower bound: each of 12 workers of the toy workload has 122 MiB that it shares with no other process.
WORKER_BYTES = 100 * 2**20


@dataclass(frozen=True, kw_only=True)
class UncheckedCell:
    """A cell that the refusals still have to check.

    Attributes:
        model: on the meta device. here: nodes on this machine. batch_size: samples of one node's minibatch, as the
        mean of unequal nodes. threads: intra-op threads of one node. elsewhere: whether another machine trains it.
    """

    request: RunRequest
    workload: Workload
    method: Method
    model: nn.Module
    device: Device
    threads: int
    batch_size: int
    here: int
    elsewhere: bool = False

    @property
    def samples(self) -> tuple[int, ...]:
        """Samples of the minibatch of each node."""
        return samples_of(self.request.shares, self.method, self.batch_size, self.request.nodes)


def refuse(unchecked: UncheckedCell) -> None:
    """Check `unchecked` against every refusal.

    Raises:
        UserError: naming the first thing that cannot work, and the way out.
    """
    for check in REFUSALS:
        if not (unchecked.elsewhere and check in _OF_THIS_MACHINE):
            check(unchecked)


def _sinks(unchecked: UncheckedCell) -> None:
    """The packages of the requested sinks are installed."""
    for text in unchecked.request.sinks:
        load_sink(text)


def _threads(unchecked: UncheckedCell) -> None:
    """This machine has a core for every thread of a node."""
    if unchecked.threads > cores():
        raise UserError(f"--threads {unchecked.threads} is more than this machine's cores; use at most {cores()}")


def _schedule(unchecked: UncheckedCell) -> None:
    """The method supports the learning-rate schedule of its options."""
    method, options = unchecked.method, unchecked.method.options
    if method.scheduled or not isinstance(options, OptimizerOptions):
        return
    given = "schedule=constant" if options.schedule != "constant" else "warmup=0" if options.warmup else ""
    if given:
        raise UserError(f"method {method.name!r} has a constant learning rate; use --set {given}")


def _own_optimizer(unchecked: UncheckedCell) -> None:
    """The method can step the workload's own optimizer, if it has one, and no option of another is set."""
    workload, method, request = unchecked.workload, unchecked.method, unchecked.request
    if not workload.optimizer:
        return
    if method.own_updates:
        raise UserError(
            f"{method.name} {method.own_updates}, so it cannot step the optimizer of {workload.name}; delete its "
            "function optimizer and use --set optimizer=adamw, or use ddp or local_sgd"
        )
    given = [name for name in request.method_options if name in OF_RULES]
    if given:
        raise UserError(f"--set {given[0]}: {workload.name} has an optimizer of its own; set it there")
    if getattr(method.options, "average_optimizer", False):
        raise UserError(
            f"--set average_optimizer: {method.name} does not know the state of the optimizer of "
            f"{workload.name}; leave it out"
        )


def _own_batches(unchecked: UncheckedCell) -> None:
    """Data that makes batches of its own size keeps that size."""
    workload, batch_size = unchecked.workload, unchecked.batch_size
    if workload.in_turn and batch_size != workload.batch_size:
        raise UserError(
            f"--batch-size {batch_size}: the data of {workload.name} yields batches of {workload.batch_size} "
            "samples itself; change it there, or return a Dataset"
        )


def _shares(unchecked: UncheckedCell) -> None:
    """The method trains on unequal nodes, and each node gets a sample of a step, or a unit."""
    request, method, workload = unchecked.request, unchecked.method, unchecked.workload
    check_shares(request.shares, method, workload, unchecked.model, unchecked.batch_size, request.nodes)


def _elastic(unchecked: UncheckedCell) -> None:
    """Every number of nodes of `--elastic` can take over the checkpoint of another, and train the model."""
    elastic, method = unchecked.request.elastic, unchecked.method
    if elastic is None:
        return
    if not isinstance(method, Reshards):
        raise UserError(
            f"--elastic {elastic}: {method.name} cannot take over the checkpoint of another number of nodes; leave "
            "--elastic out, or use ddp, zero, fsdp, p3, local_sgd, diloco or ist"
        )
    for nodes in elastic.sizes()[:-1]:
        request = msgspec.structs.replace(unchecked.request, nodes=nodes, elastic=None)
        fewer = dataclasses.replace(unchecked, request=request, here=min(nodes, unchecked.here))
        try:
            for check in (_by_method, _memory):
                check(fewer)
        except UserError as error:
            raise UserError(f"--elastic {elastic}, with {counted(nodes, 'node')}: {error}") from None


def _save(unchecked: UncheckedCell) -> None:
    """The weights can be written to the directory of `--save`."""
    if unchecked.request.save is not None:
        check_directory(unchecked.request.save)


def _own_kernels(unchecked: UncheckedCell) -> None:
    """A method with its own kernels computes in float32 on CPUs."""
    request, method, device = unchecked.request, unchecked.method, unchecked.device
    if isinstance(method, OwnKernels) and device == "cuda":
        raise UserError(f"--device cuda: {request.method} runs on CPUs only; use --device cpu")
    if isinstance(method, OwnKernels) and request.amp:
        raise UserError(f"--amp: {request.method} computes in float32 only; leave it out")


def _half_precision(unchecked: UncheckedCell) -> None:
    """The device computes in the half precision of `--amp`."""
    request, device = unchecked.request, unchecked.device
    if request.amp and not _computes(HALF[request.amp], device):
        there = "this GPU" if device == "cuda" else "torch on this machine's cores"
        other = "--amp bf16" if request.amp == "fp16" else "--amp fp16" if device == "cuda" else "float32"
        raise UserError(f"--amp {request.amp}: {there} does not support {HALF[request.amp]}; use {other}")


def _channels_last(unchecked: UncheckedCell) -> None:
    """`--channels-last` needs a model with filters of images."""
    request, model = unchecked.request, unchecked.model
    if request.channels_last and not any(parameter.dim() == 4 for parameter in model.parameters()):
        raise UserError(f"--channels-last: {request.workload} has no filters of images; leave it out")


def _compiled(unchecked: UncheckedCell) -> None:
    """`--compile` needs a method that leaves the forward pass whole and keeps its model."""
    request, method = unchecked.request, unchecked.method
    if request.compile and method.interrupts:
        raise UserError(
            f"--compile: {request.method} {method.interrupts}, so torch cannot compile it; leave --compile out"
        )
    warms_up = bool(getattr(method.options, "warmup_rounds", None)) and request.nodes > 1
    if request.compile and isinstance(method, CutsUnits) and warms_up:
        raise UserError(
            f"--compile: {request.method} trains another model after warmup_rounds, and torch would compile "
            "that one on the clock; leave --compile or warmup_rounds out"
        )


def _compiler(unchecked: UncheckedCell) -> None:
    """`--compile` needs a compiler, and what its programs include."""
    device = unchecked.device
    if not unchecked.request.compile:
        return
    names = ("CC", "gcc", "cc", "clang") if device == "cuda" else ("CXX", "g++")
    variable, *usual = names
    given = os.environ.get(variable)
    if not any(shutil.which(name) for name in ([given] if given else usual)):
        kind = "C" if device == "cuda" else "C++"
        raise UserError(
            f"--compile needs a {kind} compiler, but {given or usual[0]} is missing; install one, name it in "
            f"{variable}, or leave --compile out"
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise UserError("--compile needs Python's headers; install them (python3-dev), or leave --compile out")
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        raise UserError("--compile on a GPU needs triton; install it, or leave --compile out")


def _by_method(unchecked: UncheckedCell) -> None:
    """The method accepts the model, the workload and the number of nodes."""
    method = unchecked.method
    method.check(method.options, unchecked.model, unchecked.workload, unchecked.request.nodes)


def _memory(unchecked: UncheckedCell) -> None:
    """This machine has enough memory for all known parts of training, data and processes."""
    request, workload, method, here = unchecked.request, unchecked.workload, unchecked.method, unchecked.here
    if unchecked.device != "cpu" or request.anyway:
        return
    model, nodes = unchecked.model, request.nodes
    activations = not (request.amp or request.compile)
    take_shares(request.shares, method, unchecked.batch_size, nodes)  # a footprint is of the largest part
    batch_size, copies = max(unchecked.samples), float(here)
    if nodes == here:  # all nodes together need what their parts do, and not the largest so many times
        batch_size = unchecked.batch_size
        largest_part = max(method.shares, default=1.0)
        copies = math.fsum((part / largest_part) ** 2 for part in method.shares) or copies
    footprint = method.footprint(model, workload, nodes, batch_size) if isinstance(method, Planned) else None
    there = memory_bytes()
    data = (here + 1) * workload.computed_bytes()  # the launcher computes the data too, for its fingerprint
    processes = here * WORKER_BYTES
    always = data + processes
    if footprint is None:
        memory, needed = None, always
    else:
        updates_wide = footprint.updates_wide_layers
        least = unknown_cost(footprint.model, updates_wide=updates_wide)
        memory = node_memory(footprint, least, stepping=False)
        needed = round(copies * memory.total) + always
        largest = max((tensor_bytes([tensor]) for tensor in footprint.stepped), default=0)
        most = needed + round(copies * _MOST_OF_STEPPED * largest)
        if most > there:
            memory = node_memory(footprint, least)
            needed = round(copies * memory.total) + always
        if needed <= there and activations and _may_matter(workload, here, batch_size, most, there):
            copied = footprint.gradients_copied
            cost = step_cost(footprint.model, workload, footprint.samples, copied=copied, updates_wide=updates_wide)
            memory = node_memory(footprint, cost, batches_ahead=workload.batches_ahead)
            needed = round(copies * memory.total) + always
    if needed > there:
        on = counted(nodes, "node") if nodes == here else f"{here} of {nodes} nodes"
        parts = [
            f"a node: {memory.in_words()}" if memory else "",
            f"data {data / _GIB:,.2f} GiB" if data else "",
            f"Python and torch of the workers {processes / _GIB:,.2f} GiB",
        ]
        raise UserError(
            f"{workload.name} by {method.name} on {on} needs at least {needed / _GIB:,.1f} GiB, but this machine "
            f"has {there / _GIB:,.1f}; use fewer nodes or smaller workload options, or try --anyway "
            f"({'; '.join(filter(None, parts))})"
        )


def _may_matter(workload: Workload, nodes: int, batch_size: int, needed: int, there: int) -> bool:
    """Whether activations could need too much memory. Computing them exactly takes seconds, on the meta device."""
    with torch.device("meta"):
        batch = workload.meta_batch(batch_size)
    if batch is None:
        return False
    with during("counting the bytes of a batch", workload.place("data")):
        size = tensor_bytes(batch_tensors(batch))
    return _MOST_OF_WEIGHTS * needed + nodes * _MOST_OF_BATCH * size > there


def _batch(unchecked: UncheckedCell) -> None:
    """BatchNorm gets at least two samples in every part of a minibatch."""
    model, batch_size = unchecked.model, min(unchecked.samples, key=unchecked.method.least_batch)
    if unchecked.method.least_batch(batch_size) > 1:
        return
    layer = next((name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm1d)), None)
    if layer is not None:
        raise UserError(
            f"batch size {batch_size} gives BatchNorm ({layer}) a single sample to normalise; "
            "use at least 2 samples for every part of a minibatch"
        )


def _computes(dtype: torch.dtype, device: str) -> bool:
    """Whether a convolution and a linear layer train in `dtype` on `device`."""
    if device == "cuda":
        return dtype is torch.float16 or torch.cuda.is_bf16_supported(including_emulation=False)
    weight = torch.ones(1, 1, 1, 1, requires_grad=True)
    try:
        with torch.autocast(device, dtype=dtype):
            image = F.conv2d(torch.ones(2, 1, 2, 2), weight)
            F.linear(image.flatten(1), torch.ones(2, 4)).float().sum().backward()
    except RuntimeError:
        return False
    return True


REFUSALS: tuple[Callable[[UncheckedCell], None], ...] = (
    _sinks,
    _threads,
    _schedule,
    _own_optimizer,
    _own_batches,
    _shares,
    _elastic,
    _save,
    _own_kernels,
    _half_precision,
    _channels_last,
    _compiled,
    _compiler,
    _by_method,
    _memory,
    _batch,
)
_OF_THIS_MACHINE = {_threads, _half_precision, _compiler, _memory}
"""Those that another machine, which trains the cell, checks itself."""
