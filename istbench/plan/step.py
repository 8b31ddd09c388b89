"""A local step on the meta device: its memory and operations, and the moment when each gradient is complete."""

import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from istbench.base.error_lines import during
from istbench.cluster.collective import Backend
from istbench.cluster.estimate import NodeMemory
from istbench.cluster.in_turns import buffers_of
from istbench.methods.footprint import (
    NEEDS_VALUES,
    Footprint,
    PlannedNode,
    StepCost,
    batch_tensors,
    tensor_bytes,
    trained,
)
from istbench.methods.optimizer import is_fused_on_cpu
from istbench.methods.wide_layers import WideLayers, wide_weights
from istbench.node.step_work import OperationCounter
from istbench.workloads.base import Workload


def step_cost(
    model: nn.Module, workload: Workload, samples: int, *, copied: bool, updates_wide: bool = False
) -> StepCost:
    """The cost of a forward and backward pass of `samples` through `model` (meta device).

    copied: whether the method copies each complete gradient and frees it at once.
    updates_wide: whether the backward pass updates wide layers.
    """
    parameters = trained(model)
    with torch.device("meta"):
        batch = workload.meta_batch(samples)
    if batch is None:
        return unknown_cost(model, updates_wide=updates_wide)
    with during("counting the bytes of a batch", workload.place("data")):
        inputs = batch_tensors(batch)
        batch_bytes = tensor_bytes(inputs)
    live = LiveBytes([*model.parameters(), *model.buffers(), *inputs])
    counter = OperationCounter()
    uses: dict[int, float] = {}
    ready: dict[int, float] = {}
    numbers = {parameter: number for number, parameter in enumerate(parameters)}

    def used(own: Sequence[int], module: nn.Module, inputs: object) -> None:
        for number in own:
            uses.setdefault(number, counter.operations)

    def completed(number: int, parameter: Tensor) -> None:
        ready[number] = counter.operations
        if copied:
            parameter.grad = None

    hooks = [
        module.register_forward_pre_hook(partial(used, own))
        for module in model.modules()
        if (own := [numbers[p] for p in module.parameters(recurse=False) if p in numbers])
    ]
    wide = {*wide_weights(model)} if updates_wide else set[nn.Parameter]()
    hooks += [
        p.register_post_accumulate_grad_hook(partial(completed, n))
        for p, n in numbers.items()
        if p not in wide  # a hook needs a gradient
    ]
    layers = WideLayers(model, torch.optim.SGD([{"params": parameters}]), plain=updates_wide)
    try:
        with counter, live:
            with layers:
                loss = workload.loss(model, batch)
            layers.backward(loss)
            del loss
        updated = tensor_bytes(weight for weight in wide if weight.grad is None)
    except NEEDS_VALUES:  # the loss
        return unknown_cost(model, updates_wide=updates_wide)
    finally:
        for hook in hooks:
            hook.remove()
        model.zero_grad(set_to_none=True)
    work = counter.counted().work
    flops = work.operations
    return StepCost(
        peak=live.peak + batch_bytes,
        batch=batch_bytes,
        flops=flops,
        bytes=work.bytes,
        uses=_in_order(uses, range(len(parameters)), flops, missing=0.0),
        ready=_in_order(ready, reversed(range(len(parameters))), flops, missing=flops),
        updated=updated,
    )


def optimizer_scratch(footprint: Footprint, *, all_at_once: bool) -> int:
    """Bytes of temporary memory that a step of the optimizer takes.

    all_at_once: whether it steps all tensors together, as on a GPU, instead of one after another.
    """
    if not footprint.stepped:
        return 0
    tensors = [nn.Parameter(torch.empty_like(tensor)) for tensor in footprint.stepped]
    optimizer: Any = footprint.build(tensors)
    if is_fused_on_cpu(optimizer) and not all_at_once:
        return 0
    for group in optimizer.param_groups:
        group["foreach"] = all_at_once
    for tensor in tensors:
        tensor.grad = torch.empty_like(tensor)
    optimizer.step()  # the first makes the optimizer's state
    state = [value for kept in optimizer.state.values() for value in kept.values() if isinstance(value, Tensor)]
    live = LiveBytes([*tensors, *(tensor.grad for tensor in tensors if tensor.grad is not None), *state])
    with live:
        optimizer.step()
    return live.peak


def unknown_cost(model: nn.Module, *, updates_wide: bool = False) -> StepCost:
    """The cost of a step through `model` if the step cannot run on the meta device."""
    uses = tuple((number, 0.0) for number in range(len(trained(model))))
    updated = tensor_bytes(wide_weights(model)) if updates_wide else 0
    return StepCost(peak=None, batch=0, flops=None, uses=uses, ready=uses[::-1], updated=updated)


def _in_order(
    seen: dict[int, float], others: Any, flops: float, *, missing: float
) -> tuple[tuple[int, float], ...]:
    """Parameters with their share of all `flops`. Unseen ones come first (`missing` 0) or last."""
    unseen = [(number, missing) for number in others if number not in seen]
    listed = [*seen.items(), *unseen] if missing else [*unseen, *seen.items()]
    return tuple((number, at / flops if flops else 0.0) for number, at in listed)


class LiveBytes(TorchDispatchMode):
    """Counts bytes of tensors from their creation until their last reference disappears, on the meta device too.

    Temporary memory of a kernel does not count.

    Args:
        known: tensors that exist already. They do not count.

    Attributes:
        now: bytes alive. peak: the most so far.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func` and count the tensors that it returns."""
        made = func(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, Tensor):
                self._count(value)
        return made

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._end, storage._cdata, storage.nbytes())

    def _end(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


_GPU_WORKSPACES = 64 << 20
"""Bytes of 32 MiB that cuBLAS keeps on an H100 for the forward pass, and again for the backward pass's thread."""


def node_memory(
    footprint: Footprint,
    cost: StepCost,
    *,
    data: int = 0,
    batches_ahead: int = 0,
    on_gpu: bool = False,
    backend: Backend = "gloo",
    distant: int = 0,
    stepping: bool = True,
) -> NodeMemory:
    """The memory of the busiest node.

    Args:
        data: bytes of data that every process computes and holds. batches_ahead: number of batches made ahead.
        on_gpu: then data and batches made ahead are in another memory, an optimizer steps all tensors at once, and
            activations include workspaces.
        backend: carries the collectives. distant: the nodes, if they are distant and average in turns; else 0.
        stepping: whether to count the temporary memory of an optimizer step. The first count takes seconds.
    """
    gradients = trained(footprint.model)
    kept = tuple(footprint.model.parameters()) if footprint.shards is None else footprint.shards
    gradient_bytes = tensor_bytes(parameter for parameter in kept if parameter.requires_grad) - cost.updated
    largest = max((tensor_bytes([gradient]) for gradient in gradients), default=0)
    activations = None
    if cost.peak is not None:
        activations = max(0, cost.peak - (0 if footprint.gradients_copied else gradient_bytes))
        activations += _GPU_WORKSPACES if on_gpu else batches_ahead * cost.batch
    beside, at_most = _buffers_in_turns(footprint, cost, distant)
    return NodeMemory(
        parameters=tensor_bytes([*kept, *footprint.model.buffers()]) + footprint.parameters_beside,
        gradients=gradient_bytes,
        optimizer_state=footprint.optimizer_state,
        activations=activations,
        least_activations=largest if footprint.gradients_copied else 0,
        buffers=footprint.buffers + (footprint.gloo_buffers if backend == "gloo" else 0) + beside,
        round_buffers=footprint.round_buffers + at_most - beside,
        optimizer_scratch=optimizer_scratch(footprint, all_at_once=on_gpu) if stepping else 0,
        data=0 if on_gpu else data,
    )


def _buffers_in_turns(footprint: Footprint, cost: StepCost, nodes: int) -> tuple[int, int]:
    """Bytes of the buffers of the all-reduces of a round in turns: while a node computes, and at most."""
    if nodes < 2 or footprint.rounds is None:
        return 0, 0
    node = PlannedNode(0, nodes, cost, 0.0)
    next(footprint.rounds(node))
    return buffers_of(node.builder.to_arrays(), nodes)
