"""Shares of unequal nodes (`--shares`): the samples or units of each node, and methods that cannot take them."""

from typing import Literal

from torch import nn

from istbench.base.errors import UserError
from istbench.base.options.shares import Shares, in_proportion
from istbench.methods.base import ChecksShares, Method
from istbench.workloads.base import Workload


def divided_by_shares(method: Method, workload: Workload) -> Literal["", "samples", "units"]:
    """What `method` divides among unequal nodes; empty if it cannot."""
    if method.unequal == "units":
        return "units"
    return "samples" if method.unequal and not workload.in_turn else ""


def samples_of(shares: Shares | None, method: Method, batch_size: int, nodes: int) -> tuple[int, ...]:
    """Samples of the minibatch of each node, as far as they are known before a run measures speeds.

    batch_size: of a node, as the mean of all.
    """
    if shares is None or not shares.speeds or method.unequal == "units":
        return (batch_size,) * nodes
    return in_proportion(batch_size * nodes, shares.speeds)


def check_shares(
    shares: Shares | None, method: Method, workload: Workload, model: nn.Module, batch_size: int, nodes: int
) -> None:
    """Refuse, before any process starts, `shares` that `method` cannot take, or that leave a node without work.

    Raises:
        UserError: naming the method, the node or the data.
    """
    if shares is None:
        return
    shares.check(nodes, f"--shares {shares}")
    if not method.unequal:
        replicated = method.batches == "replicated"
        why = "takes one minibatch on all nodes" if replicated else "has no mean over unequal minibatches"
        raise UserError(
            f"--shares: {method.name} {why}; leave it out, or use ddp, zero, fsdp, p3, local_sgd, diloco or ist"
        )
    if method.unequal == "units":
        if isinstance(method, ChecksShares):
            method.check_shares(model, workload, shares.speeds)
        return
    if workload.in_turn:
        raise UserError(
            f"--shares: the data of {workload.name} yields batches of {workload.batch_size} samples itself; return "
            "a Dataset, or leave it out"
        )
    samples = samples_of(shares, method, batch_size, nodes)
    if 0 in samples:
        raise UserError(
            f"--shares {shares} leaves node {samples.index(0)} without one of the {sum(samples)} samples of a "
            "step; give it a larger share, or use a larger --batch-size"
        )


def take_shares(shares: Shares | None, method: Method, batch_size: int, nodes: int) -> None:
    """Give `method` the shares, as samples of each node or as they are; nothing for equal nodes."""
    speeds = () if shares is None else shares.speeds
    if len(set(speeds)) > 1 and method.unequal == "units":
        method.shares = speeds
    elif len(set(speeds)) > 1:
        method.samples = in_proportion(batch_size * nodes, speeds, least=1)
