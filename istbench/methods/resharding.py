"""The states of all nodes of a group, for a node of a group of another size (`Reshards` in base.py).

A tensor that differs between nodes becomes its mean. Means are added up in float64: the mean of n equal values is
that value, bit for bit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def mean_of(tensors: Sequence[Tensor], count: int) -> Tensor:
    """The mean of `tensors` over `count` nodes; those without one count as zero. Whole numbers: the first."""
    first, *others = tensors
    if not first.is_floating_point() or (len(tensors) == count and all(torch.equal(first, own) for own in others)):
        return first
    total = first.double()
    for other in others:
        total = total + other.double()
    return (total / count).to(first.dtype)


def mean_tensors(by_node: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each named tensor over nodes; a node without it counts as zero."""
    names = dict.fromkeys(name for tensors in by_node for name in tensors)
    return {name: mean_of([own[name] for own in by_node if name in own], len(by_node)) for name in names}


def mean_slots(by_node: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over nodes of the optimizer's state of one parameter.

    A node whose optimizer has no state of it yet counts as zero, also in the number of updates (`update_counts`).
    """
    found: dict[str, Any] = {}
    for slot in dict.fromkeys(slot for slots in by_node for slot in slots):
        values = [slots[slot] for slots in by_node if slots.get(slot) is not None]
        if values and isinstance(values[0], Tensor):
            found[slot] = mean_of(values, len(by_node))
        else:
            found[slot] = values[0] if values else None
    return found


def mean_optimizer(by_node: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over nodes of the states of optimizers over alike parameters (`optimizer_state`)."""
    indices = dict.fromkeys(index for state in by_node for index in state["state"])
    slots = {index: mean_slots([state["state"].get(index, {}) for state in by_node]) for index in indices}
    return {**by_node[0], "state": slots}
