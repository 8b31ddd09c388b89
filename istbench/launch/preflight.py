"""What cannot work is refused before any process starts: sizes that this machine cannot hold, batches too small."""

from torch import nn

from istbench.errors import UserError
from istbench.machine import cores, memory_bytes
from istbench.methods.base import Method
from istbench.optimizer import OptimizerOptions
from istbench.workloads.base import Workload

_GIB = 2**30
_WITH_GRADIENT = 2


def check_memory(method: Method, model: nn.Module, workload: Workload, nodes: int) -> None:
    """Whether `nodes` processes of this machine can hold their share of `model`, with its gradient, and the data.

    The least that is needed: activations, optimizer state and buffers come on top.

    Raises:
        UserError: saying how much is needed and how much there is.
    """
    itemsize = max((parameter.element_size() for parameter in model.parameters()), default=4)
    weights = method.least_parameters(model, workload, nodes) * itemsize * _WITH_GRADIENT
    # The launching process draws computed data too, to know what it is.
    needed = nodes * weights + (nodes + 1) * workload.computed_bytes()
    there = memory_bytes()
    if needed > there:
        on = "1 node" if nodes == 1 else f"{nodes} nodes"
        raise UserError(
            f"{workload.name} by {method.name} on {on} needs {needed / _GIB:,.1f} GiB at least, this machine has "
            f"{there / _GIB:,.1f}; use fewer nodes, or smaller workload options"
        )


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
