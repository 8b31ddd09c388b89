"""The tensors that no unit indexes: every node trains them, and the nodes average them at the end of a round.

There are two ways. If few values are shared, their optimizer state is averaged with them, in float64: an exchange
without training changes no bit then. If layers are left whole, they are averaged as in `local_sgd`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from istbench.fabric import Fabric
from istbench.methods.dealt_groups import ALL
from istbench.methods.flat import flatten_in_place, is_frozen
from istbench.methods.subnets.exchange import Planes
from istbench.workloads.neuron_groups.layout import Layout

_NAME = "averaging shared tensors"
_FEW = 0.1
"""Shared values up to this part of the model are averaged in float64. With Adam's state, each takes 24 bytes.
At a tenth, that is 2.4 bytes for each value of the model; `local_sgd` averages all of it in 4."""


def averaged_in_place(options: Any, layout: Layout) -> bool:
    """Whether nodes with `options` average shared tensors as `local_sgd` does, after the warm-up.

    layout: of the groups that are dealt. They may leave most of a model whole, also with `deal=all`.
    """
    if options.deal != ALL or options.coverage > 1:
        return True
    # Without local steps, the exchange is a diagnosis and must change no bit.
    return bool(options.local_steps) and layout.replicated_share > _FEW


def _means(fabric: Fabric, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
    """The mean over nodes of each of `tensors` in float64, by one all-reduce."""
    if not tensors:
        return []
    flat = torch.cat([tensor.detach().reshape(-1).to(fabric.device, torch.float64) for tensor in tensors])
    fabric.all_reduce_mean(flat, name)
    means = flat.split([tensor.numel() for tensor in tensors])
    return [mean.view(tensor.shape) for mean, tensor in zip(means, tensors, strict=True)]


class MeansInPlace:
    """Means in the numbers of the model, by one all-reduce without copies: those of `local_sgd`.

    Their optimizer state stays on its node.

    Args:
        tensors: by name, parameters and floating-point buffers. All but frozen ones move into one flat buffer.
    """

    def __init__(self, fabric: Fabric, tensors: Mapping[str, Tensor]) -> None:
        self._fabric, self._tensors = fabric, tensors
        moving = [tensor for tensor in tensors.values() if not is_frozen(tensor)]
        self._flat = flatten_in_place(moving) if fabric.world_size > 1 else []  # as in `local_sgd`

    @property
    def alike(self) -> Collection[str]:
        """Names of the tensors that are the same on all nodes after `average`, bit for bit."""
        return self._tensors.keys()

    def average(self, counts: Sequence[Tensor]) -> None:
        """Replace the tensors, and `counts` of the updates of dealt tensors, by their means over the nodes."""
        for flat in self._flat:
            self._fabric.all_reduce_mean(flat, _NAME)
        for count, mean in zip(counts, _means(self._fabric, counts, _NAME), strict=True):
            count.copy_(mean)

    def means(self, *, averaged: bool) -> dict[str, Tensor]:
        """By name, the means over the nodes; the tensors do not change. averaged: whether they are the means."""
        means = {name: tensor.detach() for name, tensor in self._tensors.items()}
        if not averaged:
            moving = [name for name, tensor in self._tensors.items() if not is_frozen(tensor)]
            means |= {name: means[name].clone() for name in moving}
            for flat in flatten_in_place(means[name] for name in moving):
                self._fabric.all_reduce_mean(flat, "assembling")
        return means


class MeansWithState:
    """Means of values and optimizer state in float64: the mean of n equal values is that value, bit for bit.

    Args:
        tensors: by name, the values. planes: makes the values with their optimizer state, by name.
    """

    alike: Collection[str] = ()

    def __init__(self, fabric: Fabric, tensors: Mapping[str, Tensor], planes: Callable[[], Planes]) -> None:
        self._fabric, self._tensors, self._planes = fabric, tensors, planes
        self._moving = {name: tensor for name, tensor in tensors.items() if not is_frozen(tensor)}

    def average(self, counts: Sequence[Tensor]) -> None:
        """Replace values, state and `counts`, of the updates of all tensors, by their means over the nodes."""
        planes = self._planes()
        tensors = [*(plane for name in self._moving for plane in planes[name]), *counts]
        for tensor, mean in zip(tensors, _means(self._fabric, tensors, _NAME), strict=True):
            tensor.copy_(mean)

    def means(self, *, averaged: bool) -> dict[str, Tensor]:
        """By name, the means of the values over the nodes; the tensors do not change."""
        means = _means(self._fabric, list(self._moving.values()), "assembling")
        moved = {
            name: mean.to(tensor.dtype) for (name, tensor), mean in zip(self._moving.items(), means, strict=True)
        }
        return {name: moved.get(name, tensor.detach()) for name, tensor in self._tensors.items()}
