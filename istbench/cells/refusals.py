"""What cannot work is refused before any process starts: sizes that this machine cannot hold, batches too small."""

import torch
from torch import nn

from istbench.errors import UserError
from istbench.footprint import batch_tensors, tensor_bytes
from istbench.machine import cores, memory_bytes
from istbench.methods.base import Method
from istbench.optimizer import OptimizerOptions
from istbench.plan.memory import node_memory
from istbench.plan.step import step_cost, unknown_cost
from istbench.workloads.base import Workload

_GIB = 2**30
# Activations beyond so many times the weights and the minibatch were never seen: 400 times an image in a ResNet.
_MOST_OF_WEIGHTS, _MOST_OF_BATCH = 4, 1000
# No optimizer's step makes as many tensors of the size of the one that it steps.
_MOST_OF_STEPPED = 8


def check_memory(
    method: Method,
    model: nn.Module,
    workload: Workload,
    nodes: int,
    here: int,
    *,
    batch_size: int,
    activations: bool,
) -> None:
    """Whether this machine can hold what training and the data take, as far as that is known.

    Args:
        nodes: of the run; here: those of them that are processes of this machine.
        activations: whether those count, where they may matter; the method's own parts always do.

    Raises:
        UserError: saying how much is needed, of what, and how much there is.
    """
    footprint = method.footprint(model, workload, nodes, batch_size)
    there = memory_bytes()
    data = (here + 1) * workload.computed_bytes()  # the launching process draws it too, to know what it is
    if footprint is None:
        memory, needed = None, data
    else:
        memory = node_memory(footprint, unknown_cost(footprint.model), stepping=False)
        needed = here * memory.total + data
        largest = max((tensor_bytes([tensor]) for tensor in footprint.stepped), default=0)
        most = needed + here * _MOST_OF_STEPPED * largest
        if most > there:
            memory = node_memory(footprint, unknown_cost(footprint.model))
            needed = here * memory.total + data
        if needed <= there and activations and _may_matter(workload, here, batch_size, most, there):
            cost = step_cost(footprint.model, workload, footprint.samples, copied=footprint.gradients_copied)
            memory = node_memory(footprint, cost, batches_ahead=workload.batches_ahead)
            needed = here * memory.total + data
    if needed > there:
        on = "1 node" if nodes == 1 else f"{nodes} nodes" if nodes == here else f"{here} of {nodes} nodes"
        parts = [f"a node: {memory.in_words()}" if memory else "", f"data {data / _GIB:,.2f} GiB" if data else ""]
        raise UserError(
            f"{workload.name} by {method.name} on {on} needs {needed / _GIB:,.1f} GiB at least, this machine has "
            f"{there / _GIB:,.1f}; use fewer nodes, or smaller workload options, or try --anyway "
            f"({'; '.join(filter(None, parts))})"
        )


def _may_matter(workload: Workload, nodes: int, batch_size: int, needed: int, there: int) -> bool:
    """Whether activations could be what is too much: a step on the meta device takes seconds to find out."""
    with torch.device("meta"):
        batch = workload.meta_batch(batch_size)
    if batch is None:
        return False
    size = tensor_bytes(batch_tensors(batch))
    return _MOST_OF_WEIGHTS * needed + nodes * _MOST_OF_BATCH * size > there


def check_threads(threads: int) -> None:
    """Whether this machine has a core for every thread of a node.

    Raises:
        UserError: where it has fewer.
    """
    if threads > cores():
        raise UserError(f"--threads {threads} is more than this machine's cores; use at most {cores()}")


def check_schedule(method: Method) -> None:
    """Whether the method follows the schedule that its options ask for.

    Raises:
        UserError: where it does not.
    """
    options = method.options
    if method.scheduled or not isinstance(options, OptimizerOptions):
        return
    asked = "schedule" if options.schedule != "constant" else "warmup" if options.warmup else ""
    if asked:
        raise UserError(f"method {method.name!r} keeps its learning rate through a run; leave out {asked}")


def check_batch(method: Method, model: nn.Module, batch_size: int) -> None:
    """Whether BatchNorm has several samples to normalise by, in every part of a minibatch.

    Raises:
        UserError: where it has a single one.
    """
    least = method.least_batch(batch_size)
    if least > 1:
        return
    layer = next((name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm1d)), None)
    if layer is not None:
        raise UserError(
            f"batch size {batch_size} leaves BatchNorm ({layer}) a single sample to normalise by; "
            "use a batch size of at least 2 for every part of a minibatch"
        )
