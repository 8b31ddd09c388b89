"""The memory and the messages of a method, computed before anything runs, for `istbench plan`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from istbench.base.errors import UserError
from istbench.methods.optimizer import OptimizerOptions
from istbench.methods.planned_node import PlannedNode as PlannedNode
from istbench.methods.planned_node import StepCost as StepCost


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The memory and messages of the busiest node of a method: bytes, and tensors on the meta device.

    Attributes:
        model: the model of the node's loss. Its parameters, buffers and gradients count.
        rounds: returns an iterator for a node; each `next` traces the next round of that node. None if the trace
            is too long.
        optimizer_state: bytes.
        stepped: the tensors that one optimizer steps at once, none if it needs their values; build: makes that
            optimizer over some tensors.
        parts: the models of the losses of all nodes, by rank, if they differ in size.
        shards: the parts of the model's parameters, and of their gradients, that the node keeps if it gathers the
            rest when it computes; None if it keeps all.
        parameters_beside: bytes of parameters outside the model, such as home shards.
        gradients_copied: whether each computed gradient is copied to permanent memory.
        updates_wide_layers: whether the backward pass updates wide layers on a CPU, as `WideLayers` does.
        buffers: bytes of permanent buffers. gloo_buffers: bytes of more of them, which gloo's collectives need.
        round_buffers: bytes of the buffers of an exchange, which exist beside gradients, without activations.
        samples: samples of a minibatch that pass through the model at once.
        window: as in `TraceMeta`.
        unlike_steps, last_bytes: as in `TraceMeta`.
        notes: facts that the figures leave out, a phrase each.
        before: the footprint of an earlier part of the run, which may need more memory.
        gathered: bytes of a local step as in `cluster.speed.StepWork`; 0 for a method without kernels of its own.
    """

    model: nn.Module
    rounds: Callable[[PlannedNode], Iterator[None]] | None
    optimizer_state: int
    stepped: tuple[Tensor, ...]
    build: Callable[[list[nn.Parameter]], Any]
    samples: int
    parts: tuple[nn.Module, ...] = ()
    shards: tuple[nn.Parameter, ...] | None = None
    parameters_beside: int = 0
    gradients_copied: bool = False
    updates_wide_layers: bool = False
    buffers: int = 0
    gloo_buffers: int = 0
    round_buffers: int = 0
    window: int | None = None
    unlike_steps: int = 0
    last_bytes: int = 0
    notes: tuple[str, ...] = ()
    before: "Footprint | None" = None
    gathered: float = 0.0


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of `model` that have gradients, in its order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def batch_tensors(batch: Iterable[object]) -> list[Tensor]:
    """The tensors of a minibatch, also those inside objects that stand for a tensor."""
    parts = [part if isinstance(part, Tensor) else vars(part) for part in batch]
    return [leaf for leaf in tree_leaves(parts) if isinstance(leaf, Tensor)]


NEEDS_VALUES = (RuntimeError, NotImplementedError, TypeError, ValueError)
"""The errors of code that reads values of tensors on the meta device."""

OwnOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Builds a workload's own optimizer over some parameters."""


def whole_model(
    model: nn.Module,
    options: OptimizerOptions,
    rounds: Callable[[PlannedNode], Iterator[None]],
    batch_size: int,
    *,
    gradients_copied: bool = False,
    own: OwnOptimizer | None = None,
) -> Footprint:
    """The footprint of a method that keeps the whole of `model` and its optimizer's state on every node.

    own: the workload's optimizer, in place of that of `options`.
    """
    parameters = trained(model)
    outer = options.rule.as_vectors(model)

    def build(tensors: list[nn.Parameter]) -> Any:
        if own is not None:  # it gets the frozen parameters too, as in training
            given = iter(tensors)
            found = own([next(given) if like.requires_grad else like for like in model.parameters()])
            if found is None:
                raise UserError("the workload's optimizer(parameters) must return one, or be left out")
            return found
        if not outer:
            return options.build(tensors)
        same = zip(tensors, parameters, strict=True)
        vectors = [tensor for tensor, like in same if any(like is one for one in outer)]
        return options.build(tensors, as_vectors=vectors)

    state = options.state_bytes(parameters, outer) if own is None else _state_bytes(build, parameters)
    return Footprint(
        model=model,
        rounds=rounds,
        optimizer_state=state or 0,
        stepped=() if state is None else tuple(parameters),
        build=build,
        samples=batch_size,
        gradients_copied=gradients_copied,
        notes=() if state is not None else ("the optimizer's memory is unknown, since it needs values",),
    )


def _state_bytes(build: Callable[[list[nn.Parameter]], Any], parameters: list[nn.Parameter]) -> int | None:
    """Bytes that an optimizer over `parameters` (meta device) keeps after a step; None if it needs their values.

    Raises:
        Exception: what the user's code raises for another reason.
    """
    tensors = [nn.Parameter(torch.empty_like(parameter)) for parameter in parameters]
    for tensor in tensors:
        tensor.grad = torch.empty_like(tensor)
    try:
        optimizer = build(tensors)
        for _ in range(2):  # `optimizer_scratch` takes as many
            optimizer.step()
    except NEEDS_VALUES as error:
        if "meta" not in str(error):
            raise
        return None
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return tensor_bytes(kept)
