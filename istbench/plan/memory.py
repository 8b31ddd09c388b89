"""Memory of a node by part, from the footprint of its method and a step on the meta device."""

from istbench.cluster.collective import Backend
from istbench.cluster.estimate import NodeMemory
from istbench.cluster.in_turns import buffers_of
from istbench.methods.footprint import Footprint, PlannedNode, StepCost, tensor_bytes, trained
from istbench.plan.step import optimizer_scratch

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
        activations = cost.peak - (0 if footprint.gradients_copied else gradient_bytes)
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
